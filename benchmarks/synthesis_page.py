"""The tables of docs/synthesis.md, from what benchmarks/synthesis.py has found."""

from __future__ import annotations

from collections.abc import Sequence

from axes import binary_size
from rows import LARGE_BYTES, Row, markdown

from fastreduce.units import duration

# Not regular: the second table has these, from LARGE_BYTES on.
IRREGULAR = (
    "dgx1, NVLink 0-3 broken",
    "2 x dgx-h100, a card at a quarter",
    "8 x dgx-h100, a card at a quarter",
    "2 x dgx-a100, 8 and 5 GPUs",
)


def with_tables(page: str, rows: Sequence[Row]) -> str:
    """The page with its tables made anew; each is found by its first line."""
    lines = page.splitlines()
    for table in (everything(rows), irregular(rows)):
        first = lines.index(table[0])
        after = first
        while after < len(lines) and lines[after].startswith("|"):
            after += 1
        lines[first:after] = table
    return "\n".join(lines) + "\n"


def everything(rows: Sequence[Row]) -> list[str]:
    head = ("topology", "size", "lower bound", "best registered", "found", "above", "search")
    cells = []
    for before, row in zip([None, *rows], rows, strict=False):
        repeated = before is not None and before["topology"] == row["topology"]
        what = ("" if repeated else row["topology"], binary_size(row["size_bytes"]))
        times = (duration(row["bound_s"]), registered(row), duration(row["found_s"]))
        above = f"{row['found_s'] / row['bound_s'] - 1:.1%}"
        cells.append((*what, *times, above, f"{row['search_s']:.0f} s"))
    return markdown([head, *cells])


def irregular(rows: Sequence[Row]) -> list[str]:
    head = ("topology", "size", "best registered", "found", "times faster", "made of")
    cells = [
        (
            row["topology"],
            binary_size(row["size_bytes"]),
            registered(row),
            duration(row["found_s"]),
            f"{row['registered_s'] / row['found_s']:.2f}",
            most_of(row["made_of"]),
        )
        for row in rows
        if row["topology"] in IRREGULAR and row["size_bytes"] >= LARGE_BYTES
    ]
    return markdown([head, *cells])


def most_of(made_of: str) -> str:
    """
    >>> most_of("9 x tree + 3 x ring + 2 x mesh + 1 x leader + 1 x host")
    '9 x tree + 3 x ring + 2 x mesh + others'
    """
    parts = made_of.split(" + ")
    return " + ".join(parts[:3] + ["others"] * (len(parts) > 3))


def registered(row: Row) -> str:
    return f"{duration(row['registered_s'])} (`{row['registered']}`)"
