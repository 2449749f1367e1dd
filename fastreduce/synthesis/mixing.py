"""Copies of programs in turns, in the proportions that make the turns short."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from fastreduce.simulation.costs import Costs
from fastreduce.synthesis.estimate import Mixture, Shape
from fastreduce.synthesis.packing import Floats, least_busy

TURNS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 32, 48)
COPIES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)


def mixtures(
    shapes: Sequence[Shape], nbytes: int, costs: Costs, earliest_s: Floats, least_s: float
) -> Iterator[Mixture]:
    """For each number of turns and of copies, the copies of programs that make the turns short.

    Which program starts in which turn with how much of the data is a linear program: a turn is as
    long as its busiest link is busy. The shares are rounded to copies. More turns than can pay are
    left out: links are busy for ``least_s`` at least.
    """
    between_s = costs.launch_s + costs.event_wait_s + float(earliest_s.min())
    shapes, earliest_s = _unlike_links(shapes, earliest_s)
    best_s = math.inf
    for turns in TURNS:
        if least_s + turns * between_s > best_s:
            return
        time_s, starts, shares = _in_turns(shapes, turns, nbytes, earliest_s, least_s)
        best_s = min(best_s, time_s + turns * (costs.launch_s + costs.event_wait_s))
        copies = [x / shapes[which].shards for x, (which, _) in zip(shares, starts, strict=True)]
        for count in COPIES:
            counts = rounded([x / sum(copies) for x in copies], count)
            yield tuple(x for x, n in zip(starts, counts, strict=True) for _ in range(n))


def _unlike_links(shapes: Sequence[Shape], earliest_s: Floats) -> tuple[list[Shape], Floats]:
    """One link of those that are always busy alike."""
    rows = np.concatenate([shape.busy_s / shape.shards for shape in shapes] + [earliest_s[None]])
    _, kept = np.unique(np.round(rows / rows.max(axis=1, keepdims=True), 9), axis=1, return_index=1)
    return [x._replace(busy_s=x.busy_s[:, kept]) for x in shapes], earliest_s[kept]


def _in_turns(
    shapes: Sequence[Shape], turns: int, nbytes: int, earliest_s: Floats, unit_s: float
) -> tuple[float, list[tuple[int, int]], list[float]]:
    """The turns' time, and the shares of the data of the programs that start in some turn."""
    from scipy.sparse import coo_array, csr_array

    links = len(earliest_s)
    starts, rows, columns, busy = [], [], [], []
    for which, shape in enumerate(shapes):
        step, link = np.nonzero(shape.busy_s)
        for start in range(turns + 1 - len(shape.busy_s)):
            rows.append((start + step) * links + link)
            columns.append(np.full(len(step), len(starts)))
            busy.append(shape.busy_s[step, link] * (nbytes / shape.shards / unit_s))
            starts.append((which, start))
    where = np.concatenate(rows), np.concatenate(columns)
    matrix = coo_array((np.concatenate(busy), where), (turns * links, len(starts)))
    idle = np.tile(earliest_s / unit_s, (turns, 1))
    time, shares, _ = least_busy(csr_array(matrix), idle)
    return time * unit_s, starts, [max(0.0, float(x)) for x in shares]


def rounded(shares: Sequence[float], total: int) -> list[int]:
    """Whole numbers in proportion, which add up to ``total`` (largest remainders).

    >>> rounded([0.5, 0.3, 0.2], 4)
    [2, 1, 1]
    """
    counts = [int(share * total) for share in shares]
    order = sorted(range(len(shares)), key=lambda i: counts[i] - shares[i] * total)
    for i in order[: total - sum(counts)]:
        counts[i] += 1
    return counts
