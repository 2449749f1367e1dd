"""Trees in time: which rank sends to which in which turn, as the prices of links and turns have it.

A packing of trees says how much can be carried while all links are busy. But in the first turn no
sum of sums can move, and in the last turn none can be passed on. A tree in time has a turn for each
of its edges, so that other trees can fill the links that this one leaves idle in some turn.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple, TypeAlias

import numpy as np

from fastreduce.instruction import Instruction
from fastreduce.synthesis.packing import Floats
from fastreduce.synthesis.symmetry import Numbers

# Turn, source and destination.
Edges: TypeAlias = list[tuple[int, int, int]]


class TimedTree(NamedTuple):
    """Sums go along ``up`` to the root, which has the result in turn ``turn``; it goes along
    ``down`` to all others."""

    root: int
    turn: int
    up: Edges
    down: Edges

    def instructions(self) -> tuple[list[Instruction], list[int]]:
        """What the ranks do, and in which turns: a rank that sums or fetches writes the result in
        the same launch to those that have it in this turn."""
        reads: dict[tuple[int, int], list[int]] = {}
        for turn, source, rank in self.up:
            reads.setdefault((turn, rank), [rank]).append(source)
        writes: dict[tuple[int, int], list[int]] = {at: [at[1]] for at in reads}
        had = {self.root: (self.turn, True)}  # since when, and whether it came by the rank's launch
        for turn, source, rank in self.down:
            since, own = had[source]
            if turn == since and own:
                writes[turn, source].append(rank)
            else:
                reads[turn, rank], writes[turn, rank] = [source], [rank]
            had[rank] = (turn, (turn, rank) in reads)
        order = sorted(reads)
        found = [
            Instruction(rank, 0, tuple(sorted(reads[turn, rank])), tuple(writes[turn, rank]))
            for turn, rank in order
        ]
        return found, [turn for turn, _ in order]


class Prices:
    """What a message from rank i to rank j costs in turn t, and the cheapest turns for it."""

    def __init__(self, prices: Floats, haste: float = 0.0) -> None:
        self.turns, self.ranks = prices.shape[:2]
        later = haste * np.arange(self.turns)[:, None, None]
        self.until, self.until_at = _least_so_far(prices - later)
        backwards, at = _least_so_far((prices + later)[::-1])
        self.since, self.since_at = backwards[::-1], self.turns - 1 - at[::-1]

    def cheapest(self, root: int, turn: int) -> TimedTree | None:
        """A cheap tree of which ``root`` has the result in ``turn``; None if there is no time for
        it. As Prim finds the cheapest of all trees: rank by rank, the one for which
        the next edge costs least. With turns that is a good tree, not always the best.
        """
        up = list(self._up(root, turn))
        down = list(self._down(root, turn))
        if min(len(up), len(down)) < self.ranks - 1:
            return None
        # The root's last sum is that of ``turn``, though nothing may be cheap then.
        return TimedTree(root, turn, up, down) if max(up)[0] == turn else None

    def _up(self, root: int, turn: int) -> Iterator[tuple[int, int, int]]:
        """Backwards in time: a rank sums before it is read."""
        outside = _Outside(self.ranks)
        rank, until = root, turn
        while True:
            outside.take(rank)
            if until >= 0:
                outside.offer(rank, self.until[until, :, rank], self.until_at[until, :, rank])
            nearest = outside.nearest()
            if nearest is None:
                return
            at, rank, reader = nearest
            until = at - 1
            yield at, rank, reader

    def _down(self, root: int, turn: int) -> Iterator[tuple[int, int, int]]:
        """Forwards: a rank passes on what it fetched in the same turn, what it was sent later."""
        outside = _Outside(self.ranks)
        written = np.zeros(self.ranks, np.intp)  # from when on others may fetch from the rank
        written[root] = turn + 1
        rank, since = root, turn
        while True:
            outside.take(rank)
            if since < self.turns:
                outside.offer(rank, self.since[since, rank], self.since_at[since, rank])
            nearest = outside.nearest()
            if nearest is None:
                return
            at, rank, source = nearest
            written[rank] = at + 1
            since = at if at >= written[source] else at + 1
            yield at, source, rank


class _Outside:
    """The ranks that a tree has not reached yet: the cheapest edge to each, and its turn."""

    def __init__(self, ranks: int) -> None:
        self.left = np.full(ranks, True)
        self.cost = np.full(ranks, math.inf)
        self.to, self.at = np.zeros(ranks, np.intp), np.zeros(ranks, np.intp)

    def take(self, rank: int) -> None:
        self.left[rank] = False

    def offer(self, rank: int, prices: Floats, turns: Numbers) -> None:
        """Edges between ``rank``, which is in the tree, and each other rank."""
        better = (prices < self.cost) & self.left
        self.cost[better], self.at[better], self.to[better] = prices[better], turns[better], rank

    def nearest(self) -> tuple[int, int, int] | None:
        """The turn of the cheapest edge, the rank outside and that in the tree."""
        rank = int(np.argmin(np.where(self.left, self.cost, math.inf)))
        if not self.left[rank] or self.cost[rank] == math.inf:
            return None
        return int(self.at[rank]), rank, int(self.to[rank])


def _least_so_far(prices: Floats) -> tuple[Floats, Numbers]:
    """For each turn the least price until then, and its turn (the last of equals)."""
    least, at = prices.copy(), np.zeros(prices.shape, np.intp)
    for turn in range(1, len(prices)):
        before = least[turn - 1] < prices[turn]
        least[turn] = np.where(before, least[turn - 1], prices[turn])
        at[turn] = np.where(before, at[turn - 1], turn)
    return least, at
