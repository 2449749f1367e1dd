"""Transfers that share links: the rate of each, and when each ends."""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from functools import lru_cache
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Floats: TypeAlias = NDArray[np.float64]

# Transfers that end within a picosecond end together: symmetric ones differ only by rounding.
MOMENT_S = 1e-12


def max_min(paths: Sequence[Sequence[int]], counts: Floats, bytes_per_s: Floats) -> Floats:
    """The max-min fair rate, in bytes per second, of each of ``counts[p]`` transfers on path p.

    A path lists its links by index into ``bytes_per_s``. Rates are max-min fair if no transfer can
    get a higher rate without lowering that of another which is as slow or slower. The algorithm is
    water-filling (Bertsekas and Gallager, *Data Networks*, section 6.5.2); one step settles all
    links that limit every one of their transfers.

    >>> max_min([[0], [0, 1], [1]], np.array([1.0, 1, 1]), np.array([10.0, 4]))
    array([8., 2., 2.])
    """
    path = np.repeat(np.arange(len(paths)), [len(links) for links in paths])
    link = np.array([link for links in paths for link in links], dtype=np.intp)
    rates = np.zeros(len(paths))
    left = bytes_per_s.astype(np.float64)
    while True:
        still = (rates[path] == 0) & (counts[path] > 0)
        path, link = path[still], link[still]
        if not len(path):
            return rates
        load = np.bincount(link, counts[path], len(left))
        share = np.full(len(left), math.inf)
        np.divide(left, load, out=share, where=load > 0)
        tightest = np.full(len(rates), math.inf)
        np.minimum.at(tightest, path, share[link])
        limits_all = np.full(len(left), True)
        limits_all[link[tightest[path] < share[link] * (1 - 1e-12)]] = False
        settled = np.unique(path[limits_all[link]])
        rates[settled] = tightest[settled]
        now = rates[path] > 0
        left -= np.bincount(link[now], (counts * rates)[path[now]], len(left))


class Network:
    """Transfers under way on links of ``bytes_per_s``, each on one of ``paths``.

    All transfers on a path have the same rate. So a path keeps one count of the bytes that each of
    its transfers has moved, and a heap of the counts at which they end. The cost of a change grows
    with the number of paths, not with the number of transfers.
    """

    def __init__(self, paths: Sequence[Sequence[int]], bytes_per_s: Sequence[float]) -> None:
        self._paths = paths
        self._bytes_per_s = np.array(bytes_per_s, dtype=np.float64)
        self._counts = np.zeros(len(paths))
        self._served = np.zeros(len(paths))
        self._next = np.full(len(paths), math.inf)
        self._ends: list[list[tuple[float, int]]] = [[] for _ in paths]
        self._rates: Floats | None = np.zeros(len(paths))
        # The steps of a regular program repeat the same few sets of transfers.
        self._solve = lru_cache(maxsize=256)(self._solve_bytes)

    def start(self, transfer: int, path: int, nbytes: float) -> None:
        """From now on ``nbytes`` go over the path; `advance` will return ``transfer``."""
        heapq.heappush(self._ends[path], (self._served[path] + nbytes, transfer))
        self._next[path] = self._ends[path][0][0]
        self._counts[path] += 1
        self._rates = None

    def next_s(self) -> float:
        """How long until the next transfer ends; infinite if there is none."""
        rates = self._current_rates()
        left_s = np.full(len(rates), math.inf)
        np.divide(self._next - self._served, rates, out=left_s, where=rates > 0)
        return max(0.0, float(left_s.min(initial=math.inf)))

    def advance(self, seconds: float) -> list[int]:
        """Let time pass, no further than `next_s`, and return the transfers that have ended."""
        rates = self._current_rates()
        self._served += rates * seconds
        ended = []
        for path in np.flatnonzero(self._next - self._served <= rates * MOMENT_S):
            ends, reached = self._ends[path], self._served[path] + rates[path] * MOMENT_S
            while ends and ends[0][0] <= reached:
                ended.append(heapq.heappop(ends)[1])
            self._next[path] = ends[0][0] if ends else math.inf
            self._served[path] *= bool(ends)  # back to zero: long sums lose digits
            self._counts[path] = len(ends)
            self._rates = None
        return ended

    def _current_rates(self) -> Floats:
        if self._rates is None:
            self._rates = self._solve(self._counts.tobytes())
        return self._rates

    def _solve_bytes(self, counts: bytes) -> Floats:
        return max_min(self._paths, np.frombuffer(counts), self._bytes_per_s)
