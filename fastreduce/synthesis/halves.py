"""Halves of trees in time, the way up or the way down, that are cheap where messages have prices.

Each rank has a *level*: the moment of its edge, on the way down counted backwards from the end. An
edge leads from an outer rank to an inner one of a higher level, and the root's level is the
highest. So both ways are one question: which edges cost the least?
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from fastreduce.synthesis.symmetry import Numbers
from fastreduce.synthesis.timed import Edges
from fastreduce.topology.traffic import Floats


class Half(NamedTuple):
    """The level of each rank, and the inner rank of its edge; the root's is itself."""

    level: Numbers
    inner: Numbers

    def edges(self) -> Edges:
        """Level, outer rank and inner rank, from the root outwards."""
        order = np.argsort(-self.level, kind="stable")[1:]
        return [(int(self.level[x]), int(x), int(self.inner[x])) for x in order]


class Side(NamedTuple):
    """One way: ``prices[l, i, o]`` is that of an edge of level l from the outer rank o to the inner
    rank i.

    If ``alone``, the outer rank writes the inner one's data at odd levels. So nobody else may read
    or write them in that turn, that is at this level and the one below.
    """

    prices: Floats
    alone: bool


def grown(side: Side, root: int, level: int, haste: float = 0.0) -> Half | None:
    """As Prim finds the cheapest of all trees: rank by rank, the one for which the next edge costs
    least. With levels that is a good half, not always the best. None if some rank is not reached.

    Each level counts as if it saved ``haste``.
    """
    growing = _Growing(side, haste)
    growing.take(root, root, level)
    for _ in range(growing.ranks - 1):
        inner, outer = divmod(int(growing.offers.argmin()), growing.ranks)
        if growing.offers[inner, outer] == math.inf:
            return None
        growing.take(outer, inner, int(growing.at[inner, outer]))
    return Half(growing.level, growing.inner)


class _Growing:
    """For each rank in the half (row) and each outside: the cheapest edge, and its level."""

    def __init__(self, side: Side, haste: float) -> None:
        levels, self.ranks, _ = side.prices.shape
        self.alone = side.alone
        self.hasty = side.prices - haste * np.arange(levels)[:, None, None]
        self.shut = np.full((levels, self.ranks), False)
        self.outside = np.full(self.ranks, True)
        self.level, self.inner = np.zeros((2, self.ranks), np.intp)
        self.offers = np.full((self.ranks, self.ranks), math.inf)
        self.at = np.zeros((self.ranks, self.ranks), np.intp)

    def take(self, rank: int, inner: int, level: int) -> None:
        self.level[rank], self.inner[rank] = level, inner
        self.outside[rank] = False
        self.offers[:, rank] = math.inf
        self._offer(rank)
        if self.alone and rank != inner:
            self.shut[[level - 1, level] if level % 2 else [level + 1], inner] = True
            self._offer(inner)

    def _offer(self, rank: int) -> None:
        """The highest of the cheapest levels for each edge to this rank."""
        level = self.level[rank]
        if level == 0:
            return
        prices = np.where(self.shut[:level, rank, None], math.inf, self.hasty[:level, rank])
        self.at[rank] = level - 1 - prices[::-1].argmin(axis=0)
        self.offers[rank] = np.where(self.outside, prices.min(axis=0), math.inf)
