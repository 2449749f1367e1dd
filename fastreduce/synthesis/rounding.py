"""From shares of the data to whole copies of programs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fastreduce.topology.traffic import Floats

Counts: TypeAlias = NDArray[np.intp]


class Begun(NamedTuple):
    """A program that begins in turn ``start``: how long each link (column) is busy in each of its
    turns (row) if it had all of the data, and its share of them."""

    start: int
    busy_s: Floats
    share: float


def copies_of(begun: Sequence[Begun], shards: Sequence[int], idle_s: Floats, total: int) -> Counts:
    """How many copies of each program, ``total`` in all, of so many shards each.

    A link for which one copy is a lot, a slow one, makes a turn much longer if it has one more than
    its share. So shares are rounded down, and the copies that are missing then go where turns
    become longer by the least; of equals, where most is missing.

    >>> one = [Begun(0, np.array([[1.0]]), 0.5), Begun(0, np.array([[3.0]]), 0.5)]
    >>> copies_of(one, [1, 1], np.zeros(1), 5)
    array([3, 2])
    """
    due = np.array([x.share for x in begun]) / shards
    due *= total / due.sum()
    counts = np.floor(due).astype(np.intp)
    steps = max(len(x.busy_s) for x in begun)
    turns = 1 + max(x.start for x in begun) + steps
    each = np.zeros((len(begun), steps, len(idle_s)))  # of one copy
    for row, x, count in zip(each, begun, due, strict=True):
        row[: len(x.busy_s)] = x.busy_s * (x.share / count)
    at = np.add.outer([x.start for x in begun], np.arange(steps))
    ends = np.zeros((turns, len(idle_s)))
    np.add.at(ends, at, each * due[:, None, None])
    length = (ends + idle_s).max(axis=1)
    ends[:] = idle_s
    np.add.at(ends, at, each * counts[:, None, None])
    for _ in range(total - int(counts.sum())):
        length = np.maximum(length, ends.max(axis=1))
        longer = np.maximum((ends[at] + each).max(axis=2) - length[at], 0).sum(axis=1)
        least = np.lexsort((counts - due, np.round(longer / length.max(), 9)))[0]
        counts[least] += 1
        ends[at[least]] += each[least]
    return counts
