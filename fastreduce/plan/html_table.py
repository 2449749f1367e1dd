"""Tables for notebooks and pages."""

from __future__ import annotations

import html
from collections.abc import Iterable


def html_table(
    above: Iterable[str],
    headings: Iterable[str],
    rows: Iterable[Iterable[str]],
    below: Iterable[str] = (),
) -> str:
    """A table between paragraphs.

    >>> html_table(["a < b"], ["x"], [["1"]])
    '<p>a &lt; b</p><table><tr><th>x</th></tr><tr><td>1</td></tr></table>'
    """
    body = "".join(_row(cells, "td") for cells in rows)
    return f"{_said(above)}<table>{_row(headings, 'th')}{body}</table>{_said(below)}"


def _said(lines: Iterable[str]) -> str:
    return "".join(f"<p>{html.escape(line)}</p>" for line in lines)


def _row(cells: Iterable[str], tag: str) -> str:
    return f"<tr>{''.join(f'<{tag}>{html.escape(cell)}</{tag}>' for cell in cells)}</tr>"
