"""Searches for the fastest program on a topology, and proves what it found."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from time import perf_counter
from typing import TYPE_CHECKING, NamedTuple

from fastreduce.algorithms.waves import staggered
from fastreduce.plan.bounds import Bound, lower_bound
from fastreduce.plan.candidates import as_measured, for_links
from fastreduce.program import Program
from fastreduce.simulation.costs import EVENTS, Costs, costs_of
from fastreduce.simulation.run import seconds as simulated_s
from fastreduce.synthesis.estimate import Mixture, estimate_s, shape_of
from fastreduce.synthesis.mixing import mixtures
from fastreduce.synthesis.packing import Links, Packing, pack
from fastreduce.synthesis.seeds import Seed, seeds
from fastreduce.units import duration, nbytes_of

if TYPE_CHECKING:
    from fastreduce.topology import Topology

# What an engine can be given, and a simulation can judge in seconds.
MOST_INSTRUCTIONS = 150_000
# From how many starts the search goes on, how many changes it tries on each, and how many of the
# results are simulated. They have one slice: copies in turns do what slices would.
CLIMBS, CHANGES, SIMULATED = 6, 600, 10


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
    seed: int = 0,
    seconds: float = math.inf,
    costs: Costs = EVENTS,
    progress: bool = False,
) -> Synthesis:
    """Search for the fastest allreduce of ``nbytes`` on each of a topology's devices.

    The search begins with the registered algorithms and what `fastreduce.synthesis.seeds` makes for
    the topology, starts copies of them in different turns and together, and moves them about. A
    quick estimate chooses what is simulated, the simulation chooses the program, and the program is
    proven. The same ``seed`` finds the same program, unless the search ran out of ``seconds``. If a
    curve of one of our algorithms was measured on the machine, links and costs are as it has them.

    Raises:
        ValueError: fewer than 2 devices, an unknown bandwidth, or what `simulate` raises.

    >>> found = synthesize("book-pcie4", "160MB")
    >>> round(found.time_s * 1e3, 1), found.bound.what
    (15.0, 'cut')
    """
    from fastreduce.topology import as_topology

    topology, total = as_topology(topology), nbytes_of(nbytes)
    k = len(topology.devices)
    if k < 2:
        raise ValueError(f"topology {topology.name!r} has {k} device, want at least 2")
    topology, costs = as_measured(topology, k, costs)
    ends = perf_counter() + seconds
    links = Links(topology, k)
    packing = pack(links)
    starting = list(seeds(topology, k, packing))
    search = _Search(starting, links, packing, total, costs, random.Random(seed))
    found = _judged(search.best(ends, progress), search, topology, costs)
    time_s, program, made_of = min(found, key=lambda each: each[0])
    program.verify()
    return Synthesis(
        program, time_s, made_of, lower_bound(topology, k, total, costs, (links, packing))
    )


def _judged(
    best: Sequence[Mixture], search: _Search, topology: Topology, costs: Costs
) -> Iterator[tuple[float, Program, str]]:
    """The simulated times of the best, and of the algorithms as a plan takes them."""
    for mixture in best:
        program = replace(staggered([seed.program for seed in search.seeds], mixture), sliced=1)
        time_s = simulated_s(program, topology, search.nbytes, costs=costs_of(program, costs))
        yield time_s, program, search.in_words(mixture)
    for candidate in for_links(topology, costs, len(topology.devices), [search.nbytes]):
        if candidate.program and not math.isnan(candidate.prediction.time_s):
            chosen = replace(candidate.program, sliced=candidate.slices)
            yield candidate.prediction.time_s, chosen, candidate.algorithm


class _Search:
    def __init__(
        self,
        found: Sequence[Seed],
        links: Links,
        packing: Packing,
        nbytes: int,
        costs: Costs,
        draws: random.Random,
    ) -> None:
        self.seeds, self.nbytes, self.costs, self.draws = found, nbytes, costs, draws
        self.earliest_s = links.earliest_s(costs.ramp_bytes)
        self.least_s = nbytes * packing.bound_s
        self.shapes = [shape_of(seed.program, links) for seed in found]
        self.sizes = [len(seed.program.instructions) for seed in found]

    def in_words(self, mixture: Mixture) -> str:
        names = [self.seeds[which].name for which, _ in mixture]
        return " + ".join(f"{names.count(name)} x {name}" for name in dict.fromkeys(names))

    def best(self, ends: float, progress: bool) -> list[Mixture]:
        """The best that is found, the best first."""
        from tqdm import tqdm

        whole = {((which, 0),) for which in range(len(self.seeds))}
        mixed = {x for x in self._mixed() if self._fits(x)}
        first = sorted((self.seconds(x), x) for x in whole | mixed)
        chosen = first[:CLIMBS]
        with tqdm(total=len(chosen) * CHANGES, disable=not progress, desc="search") as bar:
            found = [self._climb(*each, ends, bar.update) for each in chosen]
        return [mixture for _, mixture in sorted({*found, *first[:SIMULATED]})[:SIMULATED]]

    def seconds(self, mixture: Mixture) -> float:
        return estimate_s(self.shapes, mixture, self.nbytes, self.costs, self.earliest_s)

    def _mixed(self) -> Iterator[Mixture]:
        return mixtures(self.shapes, self.nbytes, self.costs, self.earliest_s, self.least_s)

    def _fits(self, mixture: Mixture) -> bool:
        return sum(self.sizes[which] for which, _ in mixture) <= MOST_INSTRUCTIONS

    def _climb(
        self, time_s: float, best: Mixture, ends: float, step: Callable[[int], object]
    ) -> tuple[float, Mixture]:
        for _ in range(CHANGES):
            step(1)
            if perf_counter() > ends:
                break
            changed = self._changed(best)
            if self._fits(changed) and (changed_s := self.seconds(changed)) < time_s:
                time_s, best = changed_s, changed
        return time_s, best

    def _changed(self, mixture: Mixture) -> Mixture:
        """A copy more, a copy less, or one that starts in another turn or is of another seed; or
        every copy twice, for finer changes."""
        found, draws = list(mixture), self.draws
        last = max(start for _, start in found)
        at = draws.randrange(len(found))
        which, start = found[at]
        what = draws.random()
        if what < 0.05:
            found += found
        elif what < 0.3:
            found.append((which, draws.randint(0, last + 1)))
        elif what < 0.45 and len(found) > 1:
            found.pop(at)
        elif what < 0.6:
            found[at] = draws.randrange(len(self.seeds)), start
        else:
            found[at] = which, draws.randint(0, last + 1)
        earliest = min(start for _, start in found)
        return tuple(sorted((which, start - earliest) for which, start in found))
