"""Rows of figures: what they are held against, and tables of them.

Imports neither torch nor fastreduce: gpu_report.py begins before these are there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

Row = dict[str, Any]

MOST_OVER_BEST = 1.1  # wanted of auto's time, divided by that of the best (docs/benchmarks.md)
LARGE_BYTES = 64 << 20  # per rank: from here on bandwidth counts, not what a call costs


def markdown(cells: Sequence[Sequence[str]]) -> list[str]:
    """The lines of a table in Markdown; the first row is its head.

    >>> print(*markdown([("size", "time"), ("1 MiB", "25 us")]), sep="\\n")
    | size | time |
    |---|---|
    | 1 MiB | 25 us |
    """
    head, *rows = (f"| {' | '.join(row)} |" for row in cells)
    return [head, "|---" * len(cells[0]) + "|", *rows]
