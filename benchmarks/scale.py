"""How does an allreduce scale from 8 to 8,192 GPUs: one flat ring, rail rings, or hierarchical?

Predicted, not measured. DGX H100 machines, each with 8 network cards of 400 Gbit/s (one per GPU, on
its PCIe switch), are joined by one switch that carries the full rate of all cards. One flat ring
uses one card of each machine, rail rings use all; the hierarchical one runs in as many waves as its
formula says are best. The rates of links are in fastreduce/topology/links.py, the costs of a launch
and an event in fastreduce/simulation/costs.py. Times are simulated up to 128 GPUs, and calculated
by formula (fastreduce/simulation/formulas.py) for all numbers of GPUs.

    python benchmarks/scale.py                                  # under a minute
    python benchmarks/scale.py --out benchmarks/results/scale   # and writes scale.json, scale.png
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from axes import save_figure, show_numbers
from rows import Row

from fastreduce.algorithms import hierarchical, multi_ring, ring
from fastreduce.plan.scaling import Formula, formulas
from fastreduce.simulation import EVENTS, seconds
from fastreduce.simulation.formulas import best_waves, levels
from fastreduce.topology import Topology, cluster, rings
from fastreduce.units import busbw, duration, size

PRESET, LOCAL, NICS, GBIT = "dgx-h100", 8, 8, 400
ALGORITHMS = {"ring": "tab:orange", "rail rings": "tab:green", "hierarchical": "tab:blue"}
MACHINES = [1 << power for power in range(11)]
SIZES = [1_000_000, 100_000_000, 10_000_000_000]
SIMULATED_RANKS = 128  # A program for k ranks has about 2 k^2 instructions.


def machines_of(machines: int) -> Topology:
    return cluster(PRESET, machines, GBIT, nics=NICS)


@cache
def formulas_of(machines: int) -> dict[str, Formula]:
    return formulas(machines_of(machines), LOCAL)


def by_formula(algorithm: str, machines: int, nbytes: int) -> float:
    return formulas_of(min(machines, 2))[algorithm](machines, nbytes)


def by_simulation(algorithm: str, machines: int, nbytes: int) -> float:
    k = machines * LOCAL
    topology = machines_of(machines)
    programs = {
        "ring": lambda: ring(k),
        "rail rings": lambda: multi_ring(k, rings(topology)),
        "hierarchical": lambda: hierarchical(k, machines, waves=waves_of(machines, nbytes)),
    }
    return seconds(programs[algorithm](), topology, nbytes, 1, EVENTS)


def waves_of(machines: int, nbytes: int) -> int:
    return best_waves(
        machines * LOCAL, machines, nbytes, *levels(machines_of(min(machines, 2)), LOCAL)
    )


def rows() -> Iterator[Row]:
    for nbytes in SIZES:
        for machines in MACHINES:
            for algorithm in ALGORITHMS:
                k = machines * LOCAL
                formula_s = by_formula(algorithm, machines, nbytes)
                simulated = k <= SIMULATED_RANKS
                yield {
                    "size_bytes": nbytes,
                    "k": k,
                    "algorithm": algorithm,
                    "formula_s": formula_s,
                    "simulated_s": by_simulation(algorithm, machines, nbytes)
                    if simulated
                    else None,
                    "busbw_gb_per_s": busbw(nbytes, formula_s, k) / 1e9,
                }


def draw(found: list[Row], path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.2 * len(SIZES), 4), layout="constrained")
    panels = figure.subplots(1, len(SIZES))
    for panel, nbytes in zip(panels, SIZES, strict=True):
        for algorithm, color in ALGORITHMS.items():
            mine = [r for r in found if r["size_bytes"] == nbytes and r["algorithm"] == algorithm]
            panel.plot(
                [r["k"] for r in mine],
                [r["formula_s"] * 1e3 for r in mine],
                color=color,
                label={"ring": "one flat ring"}.get(algorithm, algorithm),
            )
            dots = [r for r in mine if r["simulated_s"] is not None]
            panel.scatter(
                [r["k"] for r in dots],
                [r["simulated_s"] * 1e3 for r in dots],
                color=color,
            )
        panel.set_xscale("log", base=2)
        panel.set_xticks([8, 64, 512, 4096])
        panel.xaxis.set_major_formatter(lambda ranks, _: f"{ranks:,.0f}")
        show_numbers(panel)
        panel.set_title(f"{size(nbytes)} per GPU", fontsize=10)
        panel.set_xlabel("GPUs")
        panel.grid(color="#dddddd", linewidth=0.6)
    panels[0].set_ylabel("time (ms)")
    panels[0].scatter([], [], color="grey", label="dots: simulated")
    panels[0].plot([], [], color="grey", label="lines: by formula")
    panels[0].legend(fontsize=8)
    figure.suptitle(f"Allreduce on {PRESET} machines, {NICS} x {GBIT} Gbit/s each: predicted")
    save_figure(figure, path, dpi=110)


def main() -> None:
    from measure import save, stem

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=stem, help="write OUT.json and OUT.png")
    args = parser.parse_args()
    print(f"# {machines_of(MACHINES[-1]).source}")
    columns = "{:>11} {:>6} {:>13} {:>12} {:>12} {:>8}"
    print(columns.format("#size", "GPUs", "algorithm", "formula", "simulated", "busbw"))
    print(columns.format("#(per GPU)", "", "", "", "", "(GB/s)"))
    found = []
    for row in rows():
        found.append(row)
        simulated = duration(row["simulated_s"]) if row["simulated_s"] is not None else "-"
        times = (duration(row["formula_s"]), simulated)
        busbw = f"{row['busbw_gb_per_s']:.2f}"
        print(
            columns.format(size(row["size_bytes"]), row["k"], row["algorithm"], *times, busbw),
            flush=True,
        )
    apart = max(abs(r["formula_s"] / r["simulated_s"] - 1) for r in found if r["simulated_s"])
    print(f"# formula and simulation differ by at most {apart:.2%}")
    if args.out:
        assumed = {"preset": PRESET, "nics": NICS, "gbit": GBIT, "measured": False}
        save(args.out.with_suffix(".json"), {"assumed": assumed, "rows": found})
        draw(found, args.out.with_suffix(".png"))


if __name__ == "__main__":
    main()
