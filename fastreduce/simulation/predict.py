"""Predicts how long a program takes, and what limits it, for a plan."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from fastreduce.program import Program
from fastreduce.simulation.costs import Costs
from fastreduce.simulation.simulate import simulate
from fastreduce.topology import Topology


class Prediction(NamedTuple):
    """Seconds, and the limit that accounts for most of them."""

    time_s: float
    limit: str


class Memory(NamedTuple):
    """One memory that holds all ranks: seconds per call, and bytes per second of memory and cache.

    Every rank's buffer is read from memory once and written once, unless all buffers together fit
    into the cache. What the instructions read and write in between stays in caches.
    """

    call_s: float
    bytes_per_s: float
    cache_bytes_per_s: float
    cache_bytes: float


MEMORIES = {
    # Measured on 2 cores of an AMD EPYC (family 26, model 2: Zen 5), 2026-11-21, with float32: 256
    # elements with k = 2, 64M elements, and 1M elements with k = 2. The size of the cache is
    # assumed.
    "cpu": Memory(1e-6, 65e9, 330e9, 64e6),
    # Measured on one H100 80 GB, torch 2.11, 2026-11-23 (benchmarks/results/h100/report.json), with
    # float32: calls from Python, which took 9 to 12 us for most small sizes (one `add_` of torch
    # takes as long), and 256 MiB in a graph. Predicted: its L2, and half of the size of its L2.
    "gpu": Memory(10e-6, 2.95e12, 5.5e12, 25e6),
}


def in_one_memory(program: Program, nbytes: int, memory: Memory) -> Prediction:
    """Predicts the tiles engine: one launch takes every tile through the whole program.

    >>> from fastreduce.algorithms import leader
    >>> in_one_memory(leader(2), 256_000_000, MEMORIES["cpu"]).limit
    'memory'
    """
    touched = sum(len(x.srcs) + len(x.dsts) for x in program.instructions) / program.shards
    passes_memory = program.k * nbytes > memory.cache_bytes
    limits = {
        "launch": memory.call_s,
        "memory": passes_memory * 2 * program.k * nbytes / memory.bytes_per_s,
        "cache": touched * nbytes / memory.cache_bytes_per_s,
    }
    time_s = limits["launch"] + max(limits["memory"], limits["cache"])
    return Prediction(time_s, max(limits, key=lambda name: limits[name]))


def on_topology(
    program: Program,
    topology: Topology,
    nbytes: int | Sequence[int],
    slices: int,
    costs: Costs | None = None,
) -> Prediction:
    """The events engine's time, by `fastreduce.simulate`, and what takes most of it.

    Four limits are simulated one by one: launches (links cost nothing, one byte), latencies (one
    byte), memory (links cost nothing) and the busiest link.

    Raises:
        ValueError: as `fastreduce.simulate` does.
    """
    timeline = simulate(program, topology, nbytes, slices=slices, costs=costs)
    run = timeline.run
    if run is None or not timeline.events:
        return Prediction(0.0, "nothing to do")
    single = [1] * len(nbytes) if isinstance(nbytes, Sequence) else 1
    launch_s = run.time_if(single, distances=False)
    limits = {
        "launch": launch_s,
        "latency": run.time_if(single) - launch_s,
        "memory": run.time_if(distances=False) - launch_s,
    }
    if timeline.busy_share:  # one GPU may have no link
        link, share = max(timeline.busy_share.items(), key=lambda item: item[1])
        limits[f"link {link[0]} -> {link[1]}"] = share * run.time_s
    return Prediction(run.time_s, max(limits, key=lambda name: limits[name]))
