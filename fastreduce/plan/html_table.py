"""Tables for notebooks and pages."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence


def html_table(above: Sequence[str], headings: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Paragraphs and the table below them.

    >>> html_table(["a < b"], ["x"], [["1"]])
    '<p>a &lt; b</p><table><tr><th>x</th></tr><tr><td>1</td></tr></table>'
    """
    said = "".join(f"<p>{html.escape(line)}</p>" for line in above)
    body = "".join(_row(cells, "td") for cells in rows)
    return f"{said}<table>{_row(headings, 'th')}{body}</table>"


def _row(cells: Iterable[str], tag: str) -> str:
    return f"<tr>{''.join(f'<{tag}>{html.escape(cell)}</{tag}>' for cell in cells)}</tr>"
