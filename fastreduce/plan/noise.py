"""Which measured times cannot be trusted: samples spread widely, or sizes do not fit together."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from fastreduce.plan.table import Table
from fastreduce.units import duration

# Measured on 2 virtual cores (Xeon, family 6, model 167) on which 2.5 other processes ran on
# average, 2026-11-21. With one thread, 95 % of the entries spread by less than 0.5, and no size
# took more than 3 times as long per byte as the next smaller one. With two threads, which then wait
# for a core, one size took 150 times as long per byte, but no entry spread by more than 0.5. So
# both signs are needed.
MOST_SPREAD = 0.5
MOST_JUMP = 8.0
# A larger size may take half the time of a smaller one, because more threads may share the work
# (predicted).
MOST_DROP = 2.0
# An error names so many entries and counts the others.
MOST_NAMED = 3


class TableEntry(NamedTuple):
    """One entry of a table; ``nbytes`` per rank."""

    place: str
    algorithm: str
    k: int
    nbytes: int

    def __str__(self) -> str:
        return f"{self.place}, {self.algorithm}, k = {self.k}, {self.nbytes} bytes"


def spread(samples_s: Sequence[float]) -> float:
    """The interquartile range over the median.

    >>> spread([1.0, 2.0, 3.0, 4.0, 5.0])
    0.6666666666666666
    """
    lower, median, upper = statistics.quantiles(samples_s, n=4, method="inclusive")
    return (upper - lower) / median


def doubtful(samples_s: Mapping[TableEntry, Sequence[float]]) -> dict[TableEntry, str]:
    """The entries that other work on the machine seems to have disturbed, and why.

    An entry is doubtful if the quartiles of its samples are more than half the median apart. Two
    sizes are doubtful together if the larger takes less than half the time of the smaller, or more
    than 8 times as long per byte, because nothing tells which of the two is wrong.

    Args:
        samples_s: two or more samples per entry, in seconds.

    >>> steady, shaken = [1e-6, 1e-6, 1e-6], [1e-6, 2e-6, 9e-6]
    >>> entries = [TableEntry("cpu", "leader", 2, nbytes) for nbytes in (1024, 4096)]
    >>> doubtful({entries[0]: steady, entries[1]: steady})
    {}
    >>> for entry, why in doubtful({entries[0]: steady, entries[1]: shaken}).items():
    ...     print(entry, why, sep=": ")
    cpu, leader, k = 2, 4096 bytes: samples spread by 200% of their median, 2 us
    """
    found = {}
    curves: dict[tuple[str, str, int], list[tuple[TableEntry, float]]] = defaultdict(list)
    for entry in sorted(samples_s):
        samples, median_s = samples_s[entry], statistics.median(samples_s[entry])
        curves[entry[:3]].append((entry, median_s))
        if spread(samples) > MOST_SPREAD:
            of = duration(median_s)
            found[entry] = f"samples spread by {spread(samples):.0%} of their median, {of}"
    for curve in curves.values():
        for (smaller, smaller_s), (larger, larger_s) in pairwise(curve):
            per_byte = larger_s / smaller_s / (larger.nbytes / smaller.nbytes)
            if larger_s * MOST_DROP < smaller_s or per_byte > MOST_JUMP:
                why = f"{duration(larger_s)}, but {smaller.nbytes} bytes take {duration(smaller_s)}"
                found[larger] = why
                found.setdefault(smaller, f"{duration(smaller_s)}, and the next size does not fit")
    return found


class NoisyMeasurement(RuntimeError):
    """Other work disturbed the measurement, also when it was repeated.

    Args:
        table: what was measured all the same.
        entries: the entries that cannot be trusted, and why.
    """

    def __init__(self, table: Table, entries: Mapping[TableEntry, str]) -> None:
        named = "; ".join(f"{x}: {entries[x]}" for x in list(entries)[:MOST_NAMED])
        more = f"; and {len(entries) - MOST_NAMED} more" if len(entries) > MOST_NAMED else ""
        super().__init__(
            f"{len(entries)} of the measured times cannot be trusted ({named}{more}); the "
            "machine is busy: close other programs and tune again"
        )
        self.table = table
        self.entries = entries
