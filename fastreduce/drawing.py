"""Pictures as SVG or PNG, of whatever knows its figure: programs, timelines, topologies, plans."""

from __future__ import annotations

import abc
from io import StringIO
from os import PathLike
from pathlib import Path
from textwrap import fill
from typing import IO, TYPE_CHECKING, Any, overload

from fastreduce.files import replacing

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# The same program gives the same file: no date, no random ids. Names are no formulas, so a "$" in
# them is one.
STYLE: Any = {"svg.hashsalt": "fastreduce", "svg.fonttype": "none", "text.parse_math": False}
SUFFIXES = (".svg", ".png")

# More lines and boxes than this cannot be read at a glance, and take long to draw: 1,800 events
# took 3 s (measured on a busy machine of 2 cores, 2026-11-21).
MOST_MARKS_AT_A_GLANCE = 2000

DPI = 110.0
CHARACTERS = 108  # so many at 1 point fill an inch
MOST_PIXELS = 40e6  # 160 MB while a PNG is drawn; larger pictures get fewer dots per inch
MOST_PIXELS_HIGH = 65_000.0  # matplotlib writes no PNG of 65,536 or more in either direction


class Drawable(abc.ABC):
    """What `draw` takes. Its class knows its figure, so that this file need not know the class."""

    @abc.abstractmethod
    def _figure(self) -> Figure: ...

    def _marks(self) -> int:
        """How many lines and boxes the figure has at least, where that may be too many.

        Raises:
            ValueError: it is malformed, and has no figure.
        """
        return 0


class Picture(str):
    """A picture as SVG text, which a notebook shows.

    >>> import fastreduce
    >>> picture = fastreduce.draw(fastreduce.algorithms.leader(2))
    >>> "<svg" in picture
    True
    """

    __slots__ = ()

    def _repr_svg_(self) -> str:
        return str(self)

    def __repr__(self) -> str:
        return f"<Picture: {len(self):,} characters of SVG>"


@overload
def draw(what: Drawable) -> Picture: ...
@overload
def draw(what: Drawable, path: str | PathLike[str]) -> None: ...
def draw(what: Drawable, path: str | PathLike[str] | None = None) -> Picture | None:
    """Draw a program, a timeline, a topology or one of the others below: into a file, or as a
    `Picture` for a notebook.

    - A program: who sends which shard to whom, step by step. Each rank has a column, each step a
      row: what waits for nothing is in step 1, what waits for step 1 is in step 2, and so on. A box
      names the shard, with a sigma where it is reduced. Read downwards: lines come from the ranks
      whose shard is read and lead to those it is written to. Each shard has a colour.
    - A timeline: when each device and each link works.
    - A topology: its nodes and links.
    - `fastreduce.simulation.busy.Busy`: a topology with the busy share of each link.
    - `fastreduce.plan.sizes.Sizes`: each algorithm's time and busbw over the size.
    - `fastreduce.plan.step.WhatIf`: a training step from one GPU to many.

    Args:
        what: one of these.
        path: ends in ".svg" or ".png". Default: the picture is returned.

    Raises:
        OSError: the file cannot be written; what was there before is there still.
        TypeError: ``what`` is none of these.
        ValueError: another suffix, or a malformed program; no file is written.

    >>> import fastreduce, pathlib, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder, "ring.svg")
    ...     fastreduce.draw(fastreduce.algorithms.ring(4), path)
    ...     "<svg" in path.read_text()
    True
    """
    if path is not None:
        file_format = picture_format(path)
        save(figure_of(what), path, file_format)
        return None
    found = StringIO()
    save(figure_of(what), found, "svg")
    return Picture(found.getvalue())


def at_a_glance(what: Drawable) -> Picture | None:
    """A picture for a notebook, or None if it would be too full; the notebook then shows text."""
    try:
        marks = what._marks()
    except ValueError:
        return None
    return draw(what) if marks <= MOST_MARKS_AT_A_GLANCE else None


def picture_format(path: str | PathLike[str]) -> str:
    """The format that a path's suffix names.

    Raises:
        ValueError: the suffix is not that of a format that can be written.

    >>> picture_format("ring.PNG")
    'png'
    """
    suffix = Path(path).suffix.lower()
    if suffix not in SUFFIXES:
        raise ValueError(f"{str(path)!r}: want a path that ends in {' or '.join(SUFFIXES)}")
    return suffix[1:]


def figure_of(what: Drawable) -> Figure:
    """A figure of matplotlib.

    Raises:
        TypeError: ``what`` cannot be drawn.
    """
    if not isinstance(what, Drawable):
        raise TypeError(
            f"found {type(what).__name__}; want a Program, a Timeline (fastreduce.simulate gives "
            "one), a Topology, or one of Busy, Sizes, WhatIf to draw"
        )
    import matplotlib

    with matplotlib.rc_context(STYLE):
        return what._figure()


def wrapped(title: str, width_inches: float, points: float) -> str:
    """The title in lines that fit into a figure."""
    room = int(CHARACTERS * width_inches / points)
    return "\n".join(fill(line, room, break_on_hyphens=False) for line in title.splitlines())


def save(figure: Figure, target: str | PathLike[str] | IO[Any], file_format: str) -> None:
    """Write a figure: a file is written whole or not at all."""
    if isinstance(target, str | PathLike):
        with replacing(Path(target)) as unfinished, unfinished.open("wb") as file:
            save(figure, file, file_format)
        return
    import matplotlib

    width, height = figure.get_size_inches()
    most = min((MOST_PIXELS / (width * height)) ** 0.5, MOST_PIXELS_HIGH / max(width, height))
    metadata = {"Date": None} if file_format == "svg" else None
    with matplotlib.rc_context(STYLE):
        # Laid out here, because savefig would draw everything twice to do it.
        if engine := figure.get_layout_engine():
            engine.execute(figure)
            figure.set_layout_engine("none")
        figure.savefig(target, format=file_format, dpi=min(DPI, most), metadata=metadata)
