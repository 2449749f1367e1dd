"""How long does the planner take: proofs, simulations and plans, from 8 to 1,024 devices?

Building the program and the topology counts. DGX H100 machines with 8 cards of 400 Gbit/s each, as
in benchmarks/scale.py. Each case runs once in a process that has run a small one; times by the
wall clock and of the processor (all threads), which says more where other work shares the machine.
What is found is checked: simulations against the closed formulas, proofs by a program with one
instruction less, which must be refused.

    python benchmarks/planner.py                                     # under a minute
    python benchmarks/planner.py --out benchmarks/results/planner    # and writes planner.json
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from measure import machine, save, stem
from rows import Row
from scale import LOCAL, by_formula, machines_of

import fastreduce
from fastreduce import Program
from fastreduce.algorithms import hierarchical, ring, tree
from fastreduce.simulation import seconds
from fastreduce.simulation.formulas import hierarchical_s, levels
from fastreduce.units import duration

GB = 1_000_000_000


def simulated(name: str, machines: int) -> None:
    k = LOCAL * machines
    program = ring(k) if name == "ring" else hierarchical(k, machines)
    found_s = fastreduce.simulate(program, machines_of(machines), GB, slices=1).time_s
    # Of two levels `by_formula` has the fastest number of waves, and the program has one.
    expected_s = (
        by_formula(name, machines, GB)
        if name == "ring"
        else hierarchical_s(k, machines, GB, *levels(machines_of(2), LOCAL))
    )
    if abs(found_s / expected_s - 1) > 0.03:
        raise ValueError(f"{name}, k = {k}: simulated {found_s} s, by formula {expected_s} s")


def verified(program_of: Callable[[int], Program], k: int) -> None:
    program_of(k).verify()


def explained(machines: int) -> None:
    plan = fastreduce.explain("1GB", topology=machines_of(machines))
    for x in plan.candidates:
        if x.program is None or not x.prediction.time_s > 0:
            raise ValueError(f"{x.algorithm}: {x.prediction.limit}")


def tried(program: Program, machines: int) -> None:
    """As a search does it: a program that nobody has seen, on a topology that is known."""
    topology = machines_of(machines)
    for _ in range(SEARCHED):
        seconds(replace(program), topology, GB, 1)


SEARCHED = 20
CASES: dict[str, tuple[Callable[[], None], float | None]] = {
    "simulate ring, k = 128": (partial(simulated, "ring", 16), 0.5),
    "simulate hierarchical, k = 1,024": (partial(simulated, "hierarchical", 128), 10.0),
    "verify ring, k = 512": (partial(verified, ring, 512), 2.0),
    "verify hierarchical, k = 512": (partial(verified, hierarchical, 512), 2.0),
    "explain, 8 devices": (partial(explained, 1), 1.0),
    "explain, 32 devices": (partial(explained, 4), 4.0),
    "explain, 64 devices": (partial(explained, 8), 15.0),
    f"{SEARCHED} x seconds, hierarchical, k = 64": (partial(tried, hierarchical(64), 8), None),
    f"{SEARCHED} x seconds, tree, k = 64": (partial(tried, tree(64), 8), None),
}


def refuses_what_is_wrong() -> None:
    whole = ring(512)
    try:
        replace(whole, instructions=whole.instructions[:-1]).verify()
    except ValueError:
        return
    raise ValueError("a ring without its last instruction was proven")


def timed(name: str) -> Row:
    call, goal_s = CASES[name]
    wall_s, processor_s = time.perf_counter(), time.process_time()
    call()
    return {
        "what": name,
        "wall_s": time.perf_counter() - wall_s,
        "processor_s": time.process_time() - processor_s,
        "goal_s": goal_s,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=stem, help="write OUT.json")
    args = parser.parse_args()
    explained(1)  # what is imported when it is first needed
    columns = "{:42} {:>10} {:>10} {:>8}"
    print(columns.format("#", "wall", "processor", "goal"))
    rows = []
    for name in CASES:
        row = timed(name)
        rows.append(row)
        goal = duration(row["goal_s"]) if row["goal_s"] else "-"
        times = duration(row["wall_s"]), duration(row["processor_s"])
        print(columns.format(name, *times, goal), flush=True)
    refuses_what_is_wrong()
    if args.out:
        save(args.out.with_suffix(".json"), {"machine": machine(), "rows": rows})


if __name__ == "__main__":
    main()
