"""Pictures of programs, timelines and topologies, as SVG or PNG."""

from __future__ import annotations

from collections.abc import Callable
from io import StringIO
from os import PathLike
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeAlias, overload

from fastreduce.program import Program
from fastreduce.simulation.timeline import Timeline

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from fastreduce.plan.sizes import Sizes
    from fastreduce.plan.step import WhatIf
    from fastreduce.topology import Topology
    from fastreduce.topology.busy import Busy

Drawn: TypeAlias = "Program | Timeline | Topology | Busy | Sizes | WhatIf"
Color: TypeAlias = tuple[float, float, float, float]

INK, FAINT = "#222222", "#dddddd"
SEVERAL: Color = (0.2, 0.2, 0.23, 1.0)  # darker than any shard's

# The same program gives the same file: no date, no random ids.
SVG: Any = {"svg.hashsalt": "fastreduce", "svg.fonttype": "none"}
SUFFIXES = (".svg", ".png")

# More lines and boxes than this cannot be read at a glance, and take long to draw: 1,800 events
# took 3 s (measured on a busy machine of 2 cores, 2026-11-21).
MOST_MARKS_AT_A_GLANCE = 2000

DPI = 110.0
MOST_PIXELS = 40e6  # 160 MB while a PNG is drawn; larger pictures get fewer dots per inch
MOST_PIXELS_HIGH = 65_000.0  # matplotlib writes no PNG of 65,536 or more in either direction


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
def draw(what: Drawn) -> Picture: ...
@overload
def draw(what: Drawn, path: str | PathLike[str]) -> None: ...
def draw(what: Drawn, path: str | PathLike[str] | None = None) -> Picture | None:
    """Draw a program, a timeline, a topology or one of the others below: into a file, or as a
    `Picture` for a notebook.

    - A program: who sends which shard to whom, step by step. Each rank has a column, each step a
      row: what waits for nothing is in step 1, what waits for step 1 is in step 2, and so on. A box
      names the shard, with a sigma where it is reduced. Read downwards: lines come from the ranks
      whose shard is read and lead to those it is written to. Each shard has a colour.
    - A timeline: when each device and each link works.
    - A topology: its nodes and links.
    - `fastreduce.topology.busy.Busy`: a topology with the busy share of each link.
    - `fastreduce.plan.sizes.Sizes`: each algorithm's time and busbw over the size.
    - `fastreduce.plan.step.WhatIf`: a training step from one GPU to many.

    Args:
        what: one of these.
        path: ends in ".svg" or ".png". Default: the picture is returned.

    Raises:
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


def at_a_glance(what: Drawn) -> Picture | None:
    """A picture for a notebook, or None if it would be too full; the notebook then shows text."""
    marks = 0
    if isinstance(what, Program):
        try:
            what.check_form()
        except ValueError:
            return None
        marks = sum(1 + len(x.srcs) + len(x.dsts) for x in what.instructions) + what.k
    elif isinstance(what, Timeline):
        marks = len(what.events)
    elif graph := getattr(getattr(what, "topology", what), "graph", None):
        marks = len(graph.edges)
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


def figure_of(what: Drawn) -> Figure:
    from fastreduce.plan.pictures import sizes_figure, step_figure
    from fastreduce.plan.sizes import Sizes
    from fastreduce.plan.step import WhatIf
    from fastreduce.simulation.program_picture import program_figure
    from fastreduce.simulation.timeline_picture import timeline_figure
    from fastreduce.topology import Topology
    from fastreduce.topology.busy import Busy
    from fastreduce.topology.picture import busy_figure, topology_figure

    figures: dict[type, Callable[[Any], Figure]] = {
        Program: program_figure,
        Timeline: timeline_figure,
        Topology: topology_figure,
        Busy: busy_figure,
        Sizes: sizes_figure,
        WhatIf: step_figure,
    }
    for kind, figure in figures.items():
        if isinstance(what, kind):
            return figure(what)
    raise TypeError(
        f"found {type(what).__name__}; want a Program, a Timeline (fastreduce.simulate gives one), "
        f"a Topology, or one of {', '.join(kind.__name__ for kind in list(figures)[3:])} to draw"
    )


def save(figure: Figure, target: str | PathLike[str] | IO[Any], file_format: str) -> None:
    import matplotlib

    width, height = figure.get_size_inches()
    most = min((MOST_PIXELS / (width * height)) ** 0.5, MOST_PIXELS_HIGH / max(width, height))
    metadata = {"Date": None} if file_format == "svg" else None
    # Laid out here, because savefig would draw everything twice to do it.
    if engine := figure.get_layout_engine():
        engine.execute(figure)
        figure.set_layout_engine("none")
    with matplotlib.rc_context(SVG):
        figure.savefig(target, format=file_format, dpi=min(DPI, most), metadata=metadata)


def color_of(shard: int | None, shards: int) -> Color:
    """The colour of a shard: one of ten distinct colours, or of a scale if there are more."""
    from matplotlib import colormaps

    if shard is None:
        return SEVERAL
    if shards <= 10:
        red, green, blue, alpha = colormaps["tab10"](shard)
    else:
        red, green, blue, alpha = colormaps["turbo"](0.05 + 0.9 * shard / (shards - 1))
    return red, green, blue, alpha


def ink_on(color: Color) -> str:
    """A text colour that can be read on ``color``: dark on light ones (luma of ITU-R BT.601), else
    white."""
    red, green, blue, _ = color
    return INK if 0.299 * red + 0.587 * green + 0.114 * blue > 0.62 else "white"
