"""A plan as one HTML page, which needs no other file and no network."""

from __future__ import annotations

import base64
import html
from collections.abc import Sequence
from importlib import resources
from io import BytesIO
from os import PathLike
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, TypeAlias

import fastreduce
from fastreduce.drawing import Drawable, at_a_glance, figure_of, save
from fastreduce.files import write_whole
from fastreduce.program import Program

if TYPE_CHECKING:
    from fastreduce.plan.plan import Plan

# A heading, and what is below it.
Section: TypeAlias = "tuple[str, Plan | Drawable]"


def write(title: str, sections: Sequence[Section], path: str | PathLike[str]) -> None:
    """Write the page: a table where a value has one, a picture where it can be drawn."""
    write_whole(Path(path), page(title, sections))


def page(title: str, sections: Sequence[Section]) -> str:
    """
    >>> import fastreduce
    >>> plan = fastreduce.explain("160MB", topology="book-pcie4")
    >>> text = page(plan.title, [("Algorithms", plan), ("The program", plan.chosen.program)])
    >>> text.count("<h2>"), "<td>* sharded</td>" in text, "<img" in text
    (2, True, True)
    """
    template = resources.files("fastreduce.plan").joinpath("report.html").read_text("utf-8")
    return Template(template).substitute(
        title=html.escape(title),
        sections="\n".join(_section(heading, shown) for heading, shown in sections),
        version=fastreduce.__version__,
    )


def _section(heading: str, shown: Plan | Drawable) -> str:
    from fastreduce.plan.plan import Plan
    from fastreduce.plan.sizes import Sizes
    from fastreduce.plan.step import WhatIf

    table = shown._repr_html_() if isinstance(shown, Plan | Sizes | WhatIf) else ""
    picture = "" if isinstance(shown, Plan) else _picture(heading, shown)
    below = "".join(f'<div class="wide">{part}</div>' for part in (table, picture) if part)
    return f"<section><h2>{html.escape(heading)}</h2>{below}</section>"


def _picture(heading: str, shown: Drawable) -> str:
    """An image of its own, because the names inside two SVGs could be the same.

    What is too full for an SVG, whose every line is text, becomes a PNG. A program with so many
    instructions would take a minute to draw, and could not be read.
    """
    text = at_a_glance(shown)
    if text is not None:
        medium, content = "image/svg+xml", text.encode()
    elif isinstance(shown, Program):
        return f"<p>{html.escape(repr(shown))}: too many to draw here</p>"
    else:
        pixels = BytesIO()
        save(figure_of(shown), pixels, "png")
        medium, content = "image/png", pixels.getvalue()
    data = base64.b64encode(content).decode()
    return f'<img alt="{html.escape(heading)}" src="data:{medium};base64,{data}">'
