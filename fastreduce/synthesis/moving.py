"""Makes halves of trees in time cheaper by moving ranks to other levels, one by one.

Once all levels are known, each rank takes the cheapest edge to a rank of a higher one. So a move
is a new level for a rank. It costs or saves what its own edge does, and what those save that now
prefer it as their inner rank, or lose that have to leave it. Several edges change at once: a rank
that can wait longer, for a dearer edge of its own, may be of use to many.
"""

from __future__ import annotations

import math

import numpy as np

from fastreduce.synthesis.halves import Half, Side
from fastreduce.synthesis.symmetry import Numbers
from fastreduce.topology.traffic import Floats

# How often each rank is looked at, at most, and the part of the cost that is worth a move: choices.
SWEEPS, LITTLE = 4, 1e-9


def moved(side: Side, half: Half) -> Half:
    """The half after moves, each of which made it cheaper, until there is none."""
    moving = _Moving(side, half)
    for _ in range(SWEEPS):
        if not sum(moving.move(rank) for rank in range(len(half.level))):
            break
    return Half(moving.level, moving.inner)


class _Moving:
    def __init__(self, side: Side, half: Half) -> None:
        self.prices, self.alone = side
        self.level, self.inner = half.level.copy(), half.inner.copy()
        self.root = int(self.level.argmax())
        self._count()

    def move(self, rank: int) -> bool:
        """Give the rank the level that is the best for all; whether that is a new one."""
        if rank == self.root or rank == self.bound:
            return False
        own = self._own(rank)
        inner = own.argmin(axis=1)
        outer = np.flatnonzero(self.inner == rank)
        leave = self._leaving(rank, outer)
        join = self._joining(rank, outer, leave.argmin(axis=1))
        levels = np.arange(len(own))
        without = np.tile(self.cost, (len(own), 1))
        without[:, outer] = np.where(
            self.level[outer] < levels[:, None], math.inf, leave.min(axis=1)
        )
        without[:, rank] = 0.0
        joined = np.full(without.shape, math.inf)
        joined[1:] = np.minimum.accumulate(join[:-1])
        joined[levels, inner] = math.inf
        total = own.min(axis=1) + np.minimum(without, joined).sum(axis=1)
        level = int(total.argmin())
        if not total[level] < self.cost.sum() * (1 - LITTLE):
            return False
        self.inner[outer] = leave.argmin(axis=1)
        joins = np.flatnonzero(joined[level] < without[level])
        if len(joins):
            self.level[joins], self.inner[joins] = join[:level, joins].argmin(axis=0), rank
        self.level[rank], self.inner[rank] = level, inner[level]
        self._count()
        return True

    def _count(self) -> None:
        """What each rank's edge costs, and how many edges of each level lead to each rank."""
        ranks = np.arange(len(self.level))
        self.cost = self.prices[self.level, self.inner, ranks]
        self.cost[self.root] = 0.0
        self.edges = np.zeros(self.prices.shape[:2], np.intp)
        outer = ranks != self.root
        np.add.at(self.edges, (self.level[outer], self.inner[outer]), 1)
        # No rank may have a level that is not above those of its outer ranks.
        self.least = np.zeros(len(ranks), np.intp)
        np.maximum.at(self.least, self.inner[outer], self.level[outer] + 1)
        # What the root waits for last: one of these stays, or it would have the sum earlier.
        last = self.level == self.level[self.root] - 1
        self.bound = int(last.argmax()) if self.alone else self.root

    def _own(self, rank: int) -> Floats:
        """What the rank's edge costs at each level (row) to each rank."""
        levels = np.arange(len(self.prices))[:, None]
        allowed = self.level > levels
        allowed[:, rank] = False
        if self.alone:
            edges = self.edges.copy()
            edges[self.level[rank], self.inner[rank]] -= 1
            read, written = edges[::2] > 0, edges[1::2] > 0
            allowed[::2] &= ~written
            allowed[1::2] &= ~(read | written)
        found: Floats = np.where(allowed, self.prices[:, :, rank], math.inf)
        return found

    def _leaving(self, rank: int, outer: Numbers) -> Floats:
        """What the edges of these outer ranks (rows) cost at their levels to each other rank."""
        level = self.level[outer][:, None]
        allowed = self.level > level
        allowed[:, rank] = False
        if self.alone:
            allowed &= (self.edges[self.level[outer] | 1] == 0) & (level % 2 == 0)
        found: Floats = np.where(allowed, self.prices[self.level[outer], :, outer], math.inf)
        return found

    def _joining(self, rank: int, outer: Numbers, stay: Numbers) -> Floats:
        """What the edge of each other rank costs at each level (row) to this one. Some ``stay`` at
        their levels, and those that hand their sums over stay with this rank or leave it."""
        levels = np.arange(len(self.prices))[:, None]
        allowed = levels >= self.least
        if self.alone:
            allowed &= (levels % 2 == 0) & (self.edges[levels | 1, rank] == 0)
        allowed[:, [rank, self.root, self.bound, *stay]] = False
        found: Floats = np.where(allowed, self.prices[:, rank], math.inf)
        found[self.level[outer], outer] = self.cost[outer]
        return found
