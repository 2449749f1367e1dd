"""How near do programs come to what no program can beat: the registered ones, and those found?

Predicted, not measured. For each topology and size: the lower bound (fastreduce/plan/bounds.py),
the best registered algorithm (fastreduce.explain), the program that fastreduce.synthesize
finds, and how long the search took here. Each program found is proven before it is listed.

    python benchmarks/synthesis.py                                   # a few minutes
    python benchmarks/synthesis.py --out benchmarks/results/synthesis.json
    python benchmarks/synthesis.py dgx1 '2 x dgx-h100'               # some of the topologies
    python benchmarks/synthesis.py --page     # no search: docs/synthesis.md's tables from that file
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from time import perf_counter

from rows import Row

from fastreduce import explain, synthesize
from fastreduce.topology import Topology, cluster, preset
from fastreduce.units import duration, size

MIB = 1 << 20
ROOT = Path(__file__).parents[1]
RESULTS, PAGE = ROOT / "benchmarks/results/synthesis.json", ROOT / "docs/synthesis.md"
SIZES = [64 << 10, 64 * MIB, 1024 * MIB, 8192 * MIB]


def several(machines: int, name: str = "dgx-h100", gbit: float = 400, nics: int = 8) -> Topology:
    return cluster(name, machines=machines, gbit=gbit, nics=nics)


def slow_card(machines: int) -> Topology:
    return several(machines).scaled(("m0/nic3", "network"), 0.25)


def unequal() -> Topology:
    """Two machines, of which one has lost three GPUs."""
    graph = several(2, "dgx-a100", 200, 4).graph.copy()
    graph.remove_nodes_from(["m1/gpu5", "m1/gpu6", "m1/gpu7"])
    return Topology("2 x dgx-a100, 8 and 5 GPUs", "as the cluster, without three GPUs", graph)


PRESETS = ("book-pcie4", "dgx1", "dgx2-v100", "dgx-a100", "dgx-h100", "g4dn.12xlarge")
PRESETS += ("p2.16xlarge", "pcie4-x8", "pcie5-x8")
TOPOLOGIES: dict[str, Callable[[], Topology]] = {
    **{name: lambda name=name: preset(name) for name in PRESETS},
    **{f"{m} x dgx-h100": lambda m=m: several(m) for m in (2, 4, 8)},
    "2 x dgx-h100, 1 card": lambda: several(2, nics=1),
    "2 x dgx1, 4 x 100 Gbit/s": lambda: several(2, "dgx1", 100, 4),
    "4 x pcie4-x8, 2 x 100 Gbit/s": lambda: several(4, "pcie4-x8", 100, 2),
    "dgx1, NVLink 0-3 broken": lambda: preset("dgx1").without(("gpu0", "gpu3")),
    **{f"{m} x dgx-h100, a card at a quarter": lambda m=m: slow_card(m) for m in (2, 8)},
    "2 x dgx-a100, 8 and 5 GPUs": unequal,
}


def rows(chosen: list[str]) -> Iterator[Row]:
    for name in chosen:
        for nbytes in SIZES:
            topology = TOPOLOGIES[name]()
            best = explain(nbytes, topology=topology)
            began = perf_counter()
            found = synthesize(topology, nbytes)
            yield {
                "topology": name,
                "k": len(topology.devices),
                "size_bytes": nbytes,
                "bound_s": found.bound.time_s,
                "bound": found.bound.what,
                "registered_s": best.chosen.prediction.time_s,
                "registered": best.algorithm,
                "found_s": found.time_s,
                "made_of": found.made_of,
                "instructions": len(found.program.instructions),
                "search_s": perf_counter() - began,
            }


def write_page() -> None:
    from synthesis_page import with_tables

    found = json.loads(RESULTS.read_text())["rows"]
    PAGE.write_text(with_tables(PAGE.read_text(), found))


def main() -> None:
    from measure import save

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", choices=[*TOPOLOGIES, []], metavar="TOPOLOGY")
    parser.add_argument("--out", type=Path, help="write what was found as JSON")
    parser.add_argument(
        "--page", action="store_true", help="only make the tables of docs/synthesis.md anew"
    )
    args = parser.parse_args()
    if args.page:
        return write_page()
    row = "{:<34} {:>3} {:>8} {:>8} {:>10} {:>16} {:>10} {:>6} {:>7}  {}".format
    print(
        row("#topology", "k", "size", "bound", "registered", "", "found", "above", "search", "of"),
    )
    found = []
    for x in rows(args.names or [*TOPOLOGIES]):
        found.append(x)
        times = [duration(x[key]) for key in ("bound_s", "registered_s", "found_s", "search_s")]
        print(
            row(
                x["topology"],
                x["k"],
                size(x["size_bytes"]),
                times[0],
                times[1],
                x["registered"],
                times[2],
                f"{x['found_s'] / x['bound_s'] - 1:.1%}",
                times[3],
                x["made_of"],
            ),
            flush=True,
        )
        if args.out:
            save(args.out, {"measured": False, "rows": found})


if __name__ == "__main__":
    main()
