"""Copies of programs in turns, in the proportions that make the turns short."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from time import perf_counter
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from fastreduce.simulation.costs import Costs
from fastreduce.synthesis.estimate import Mixture
from fastreduce.synthesis.growing import Garden
from fastreduce.synthesis.rounding import Begun, copies_of
from fastreduce.topology.packing import least_busy
from fastreduce.topology.traffic import Floats

# A program and the turn in which it begins; and the share of the data that each of them has.
Start: TypeAlias = tuple[int, int]
Shares: TypeAlias = dict[Start, float]
Indices: TypeAlias = NDArray[np.intp]

# Tried in this order. Choices, not measurements, as all below that name no machine.
TURNS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 32, 48, 64)
COPIES = (1, 2, 3, *(i << n for n in range(13) for i in (4, 6)))
# The turns times the links times the programs with which a linear program begins, at most. So each
# takes 1 s at most and the search 54 s; with 800,000 it is 7 s and 84 s (1 GB, 4 x dgx-h100 with
# one slow card; AMD EPYC, family 26 model 2, 2026-11-27).
MOST_ENTRIES = 185_000
# Where trees in time grow: turns times links times roots. With a million the same search had not
# ended after 400 s.
MOST_TO_GROW = 30_000
# For one number of turns trees grow at most GROWTHS times. They stop when the LAST growths, or one
# more turn, have gained less than the share LITTLE of the time.
GROWTHS, LAST, LITTLE = 30, 4, 5e-3
# Columns for each row that are kept while trees grow, and a gap that is small enough to stop.
MOST_TIMES_ROWS, ENOUGH = 3, 1e-3
LEAST_SHARE = 1e-6


def mixtures(
    garden: Garden,
    nbytes: int,
    costs: Costs,
    earliest_s: Floats,
    least_s: float,
    ends: float = math.inf,
) -> Iterator[Iterator[Mixture]]:
    """For each number of turns: the copies of programs that make the turns short, few and more.

    Which program starts in which turn with how much of the data is a linear program: a turn is as
    long as its busiest link is busy. At the prices that it puts on links and turns new trees grow,
    until none would make it better. What was of use in fewer turns is there in more. The shares are
    rounded to copies. More turns than can pay are left out: links are busy for ``least_s`` at
    least. After the time ``ends`` of `time.perf_counter` nothing grows.
    """
    between_s = costs.launch_s + costs.event_wait_s
    idle_s = garden.symmetry.means(earliest_s[None])[0]
    known = [i for i, x in enumerate(garden.shapes) if garden.symmetry.keeps(x.busy_s)]
    useful: list[int] = []
    best_s = math.inf
    for turns in TURNS:
        if least_s + turns * (between_s + idle_s.min()) > best_s:
            return
        problem = _InTurns(garden, turns, nbytes, idle_s, least_s)
        problem.begin(list(dict.fromkeys([*useful, *known])))
        if not problem.columns:
            continue
        time_s, shares = problem.solved(ends)
        time_s += turns * between_s
        gain, near = 1 - time_s / best_s, best_s < 2 * least_s
        if gain < 0 and near:
            return
        best_s = min(best_s, time_s)
        useful = [which for which, _ in shares]
        yield problem.in_copies(shares)
        if gain < LITTLE and near:
            return


class _InTurns:
    """The linear program for a number of turns; its columns are programs that begin in some turn.

    All times are in units of ``unit_s``: the solver takes 1e-9 for nothing.
    """

    def __init__(
        self, garden: Garden, turns: int, nbytes: int, idle_s: Floats, unit_s: float
    ) -> None:
        self.garden, self.turns, self.nbytes, self.unit_s = garden, turns, nbytes, unit_s
        self.idle_s, self.idle = idle_s, np.tile(idle_s / unit_s, (turns, 1))
        self.columns: dict[Start, tuple[Indices, Floats]] = {}

    def begin(self, programs: Sequence[int]) -> None:
        """Take these programs, beginning in each turn in which they can."""
        most = MOST_ENTRIES // self.idle.size
        for which in programs[:most]:
            for start in range(self.turns + 1 - len(self.garden.shapes[which].busy_s)):
                self._add((which, start))

    def solved(self, ends: float = math.inf) -> tuple[float, Shares]:
        """The time of the turns, and the shares of the data that make it the least."""
        roots = len(self.garden.symmetry.roots())
        growths = GROWTHS if self.idle.size * roots <= MOST_TO_GROW else 0
        center, times = np.zeros(self.idle.shape), [math.inf] * LAST
        while True:
            time, shares, prices = self._solve()
            times.append(time)
            enough = len(times) > growths + LAST or time > times[-1 - LAST] * (1 - LITTLE)
            if enough or perf_counter() > ends:
                break
            # The prices jump; those half-way lead to good trees sooner.
            center = prices if not center.any() else 0.3 * prices + 0.7 * center
            if not self._grow(prices, center, time, ends):
                break
        return time * self.unit_s, shares

    def in_copies(self, shares: Shares) -> Iterator[Mixture]:
        begun = [Begun(start, self._busy_s(which), shares[which, start]) for which, start in shares]
        shards = [self.garden.shapes[which].shards for which, _ in shares]
        for count in COPIES:
            counts = copies_of(begun, shards, self.idle_s, count)
            yield tuple(sorted(x for x, n in zip(shares, counts, strict=True) for _ in range(n)))

    def _busy_s(self, which: int) -> Floats:
        """How long the links of each orbit are busy with all of the data, turn by turn."""
        shape = self.garden.shapes[which]
        return self.garden.symmetry.means(shape.busy_s) * (self.nbytes / shape.shards)

    def _add(self, begins: Start) -> None:
        which, start = begins
        busy = self._busy_s(which).ravel() / self.unit_s
        rows = np.flatnonzero(busy)
        self.columns[begins] = rows + start * self.idle.shape[1], busy[rows]

    def _solve(self) -> tuple[float, Shares, Floats]:
        from scipy.sparse import csc_array

        rows, busy = (np.concatenate(x) for x in zip(*self.columns.values(), strict=True))
        ends = np.cumsum([0, *(len(x) for x, _ in self.columns.values())])
        matrix = csc_array((busy, rows, ends), (self.idle.size, len(self.columns)))
        time, found, prices = least_busy(matrix, self.idle)
        shares = dict(zip(self.columns, found.tolist(), strict=True))
        in_use = {x: share for x, share in shares.items() if share > LEAST_SHARE}
        return time, in_use, prices.reshape(self.idle.shape)

    def _grow(self, prices: Floats, center: Floats, time: float, ends: float) -> bool:
        """Take trees that cost less than what is in use; whether there are some."""
        flat = prices.ravel()
        costs = {x: float(busy @ flat[rows]) for x, (rows, busy) in self.columns.items()}
        enough = (1 - ENOUGH) * (time - float((prices * self.idle).sum()))
        of_bytes = enough * self.unit_s / self.nbytes
        for guide in (prices, center):
            for begins in self.garden.grown(prices, guide, of_bytes):
                if begins not in costs:
                    self._add(begins)
                    costs[begins] = 0.0
                if perf_counter() > ends:
                    break
        kept = sorted(costs, key=costs.__getitem__)[: MOST_TIMES_ROWS * self.idle.size]
        self.columns = {x: self.columns[x] for x in kept}
        return costs[kept[0]] == 0.0
