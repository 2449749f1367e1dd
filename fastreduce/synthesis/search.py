"""Searches for the fastest program on a topology, and proves what it found."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from time import perf_counter
from typing import NamedTuple

from fastreduce.algorithms.waves import staggered
from fastreduce.arguments import check_flags
from fastreduce.kinds import is_number
from fastreduce.plan.bounds import Bound, lower_bound
from fastreduce.plan.candidates import as_measured, for_links
from fastreduce.program import Program
from fastreduce.simulation.costs import EVENTS, Costs, costs_of
from fastreduce.simulation.run import seconds as simulated_s
from fastreduce.synthesis.estimate import Mixture, estimate_s, shape_of
from fastreduce.synthesis.growing import Garden
from fastreduce.synthesis.mixing import mixtures
from fastreduce.synthesis.seeds import Seed, seeds
from fastreduce.topology import Topology, as_topology
from fastreduce.topology.packing import Packing, pack
from fastreduce.topology.traffic import Links
from fastreduce.units import duration, nbytes_of

# What an engine can be given, and a simulation can judge in seconds (predicted).
MOST_INSTRUCTIONS = 300_000
# A mixture's shards have at least so many bytes: as many as 32 threads of a GPU load at once.
LEAST_SHARD_BYTES = 512
# Fewer copies are better than a time that is shorter by less than this share (a choice).
CLOSE = 1e-3
# Packings that avoid slow links take them for so many times slower than the slowest other one.
# Their trees differ, and trees of several packings make better mixtures: on DGX-1 with gpu0-gpu3 at
# a hundredth, 64 MiB take 1014 instead of 1056 us (predicted).
TIMES_SLOWER = (10, 100, 1000, 10000)
# How many seeds are simulated as they are, and how many mixtures (a choice). These have one slice:
# copies in turns do what slices would.
WHOLE, MIXED = 10, 5


class Synthesis(NamedTuple):
    """A proven program, its predicted time, what it is made of, and what no program can beat."""

    program: Program
    time_s: float
    made_of: str
    bound: Bound

    def __str__(self) -> str:
        gap = self.time_s / self.bound.time_s - 1
        return (
            f"{self.program!r}\nmade of: {self.made_of}\npredicted: {duration(self.time_s)}, "
            f"{gap:+.1%} beside what no program without the host can beat: {self.bound}"
        )


def synthesize(
    topology: Topology | str,
    nbytes: int | str,
    *,
    seconds: float = math.inf,
    costs: Costs = EVENTS,
    progress: bool = False,
) -> Synthesis:
    """Search for the fastest allreduce of ``nbytes`` on each of a topology's devices.

    The search begins with the registered algorithms and what `fastreduce.synthesis.seeds` makes for
    the topology. Linear programs choose how many copies of them start in which turn. A quick
    estimate chooses what is simulated, the simulation chooses the program, and the program is
    proven. The same call finds the same program, unless the search ran out of ``seconds``. If a
    curve of one of our algorithms was measured on the machine, links and costs are as it has them.

    Raises:
        TypeError: ``costs`` are no `Costs`.
        ValueError: fewer than 2 devices, no bytes, ``seconds`` that are not above zero, an unknown
            bandwidth, or what `simulate` raises.

    >>> found = synthesize("book-pcie4", "160MB")
    >>> round(found.time_s * 1e3, 1), found.bound.what
    (15.0, 'cut')
    """
    check_flags("synthesize", progress=progress)
    topology, total = as_topology(topology), nbytes_of(nbytes)
    if not is_number(seconds) or not seconds > 0:
        raise ValueError(f"seconds is {seconds!r}, want a number above zero")
    if not isinstance(costs, Costs):
        raise TypeError(f"costs is {costs!r}, want a fastreduce.simulation.Costs")
    k = len(topology.devices)
    if k < 2:
        raise ValueError(f"topology {topology.name!r} has {k} device, want at least 2")
    if total < 1:
        raise ValueError(f"nbytes: found {total}, want at least 1")
    topology, costs = as_measured(topology, k, costs)
    ends = perf_counter() + seconds
    links = Links(topology, k)
    packing = pack(links)
    found: list[tuple[float, Program, str]] = []
    for starting, packed in _starts(topology, k, links, packing):
        garden = Garden(starting, links)
        chosen = _best(garden, packed, total, costs, ends, progress)
        found += _judged(chosen, garden.seeds, topology, total, costs, ends)
        if perf_counter() > ends:
            break
    found += _registered(topology, total, costs)
    time_s, program, made_of = min(found, key=_time_and_length)
    program.verify()
    return Synthesis(
        program, time_s, made_of, lower_bound(topology, k, total, costs, (links, packing))
    )


def _starts(
    topology: Topology, k: int, links: Links, packing: Packing
) -> Iterator[tuple[list[Seed], Packing]]:
    """Seeds and a packing; and, where there are slow links, those that do without them."""
    yield list(seeds(topology, k, packing)), packing
    left_out = []
    for number in links.slow():
        try:
            topology = topology.without(links.names[number])
        except ValueError:  # the other direction is out already, or some device has no other way
            continue
        left_out += [number, int(links.back[number])]
    if not left_out or len({*left_out}) == len(links.names):  # none left to take instead
        return
    packings = [pack(links.avoiding(left_out, times)) for times in TIMES_SLOWER]
    trees = tuple(dict.fromkeys(tree for packing in packings for tree in packing.trees))
    packing = packings[-1]._replace(trees=trees)
    found = list(seeds(topology, k, packing))
    fast = [x for x in found if not shape_of(x.program, links).busy_s[:, left_out].any()]
    if fast:
        yield fast, packing


def _best(
    garden: Garden,
    packing: Packing,
    nbytes: int,
    costs: Costs,
    ends: float,
    progress: bool,
) -> list[Mixture]:
    """By the estimate: seeds as they are, and for each number of turns the best mixture."""
    from tqdm import tqdm

    shapes = garden.shapes
    earliest_s = garden.links.earliest_s(costs.ramp_bytes)

    def time_s(mixture: Mixture) -> float:
        return estimate_s(shapes, mixture, nbytes, costs, earliest_s)

    def fits(mixture: Mixture) -> bool:
        shards = sum(shapes[which].shards for which, _ in mixture)
        instructions = sum(len(garden.seeds[which].program.instructions) for which, _ in mixture)
        return shards * LEAST_SHARD_BYTES <= nbytes and instructions <= MOST_INSTRUCTIONS

    whole = sorted((((which, 0),) for which in range(len(shapes))), key=time_s)
    mixed = []
    turns = mixtures(garden, nbytes, costs, earliest_s, nbytes * packing.bound_s, ends)
    for same_turns in tqdm(turns, disable=not progress, desc="numbers of turns"):
        timed = [(time_s(x), x) for x in same_turns if fits(x)]
        least_s = min((found_s for found_s, _ in timed), default=0.0)
        mixed += [x for x in timed if x[0] <= least_s * (1 + CLOSE)][:1]
        if perf_counter() > ends:
            break
    chosen = whole[:WHOLE] + [mixture for _, mixture in sorted(mixed)[:MIXED]]
    if ends < math.inf:  # there may be no time for more than the first
        chosen.sort(key=time_s)
    return list(dict.fromkeys(chosen))


def _judged(
    chosen: Sequence[Mixture],
    found: Sequence[Seed],
    topology: Topology,
    nbytes: int,
    costs: Costs,
    ends: float,
) -> Iterator[tuple[float, Program, str]]:
    """The simulated times of what was chosen; after the end, of the first alone."""
    for mixture in chosen:
        used = sorted({which for which, _ in mixture})
        copies = [(used.index(which), start) for which, start in mixture]
        programs, steps = zip(*((found[x].program, found[x].in_turns) for x in used), strict=True)
        program = replace(staggered(programs, copies, steps), sliced=1)
        time_s = simulated_s(program, topology, nbytes, costs=costs_of(program, costs))
        yield time_s, program, _in_words(found, mixture)
        if perf_counter() > ends:
            return


def _registered(
    topology: Topology, nbytes: int, costs: Costs
) -> Iterator[tuple[float, Program, str]]:
    """The algorithms as a plan takes them, with their times."""
    for candidate in for_links(topology, costs, len(topology.devices), [nbytes]):
        if candidate.program and not math.isnan(candidate.prediction.time_s):
            program = replace(candidate.program, sliced=candidate.slices)
            yield candidate.prediction.time_s, program, candidate.algorithm


def _time_and_length(found: tuple[float, Program, str]) -> tuple[float, int]:
    """Of programs that differ in time by rounding alone, the shortest is the best."""
    return float(f"{found[0]:.9e}"), len(found[1].instructions)


def _in_words(found: Sequence[Seed], mixture: Mixture) -> str:
    names = Counter(found[which].name for which, _ in mixture)
    return " + ".join(f"{count} x {name}" for name, count in names.most_common())
