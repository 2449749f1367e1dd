"""Pictures of timelines (PNG) and of programs (SVG)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from fastreduce.program import HOST, Program
from fastreduce.simulation.rows import lanes, rows
from fastreduce.simulation.timeline import Event, Timeline

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Color: TypeAlias = tuple[float, float, float, float]

INK, FAINT = "#222222", "#dddddd"
SEVERAL: Color = (0.5, 0.52, 0.56, 1.0)

# The same program gives the same file: no date, no random ids.
SVG: Any = {"svg.hashsalt": "fastreduce", "svg.fonttype": "none"}

LANE_INCHES = 0.32
MOST_INCHES = 200.0  # A picture higher than 65,535 pixels cannot be written.
WIDTH_INCHES = 12.0
CHARACTERS_AT_7 = 160  # That many at 7 points fill the width that is left beside the names.


def _color(shard: int | None, shards: int) -> Color:
    """A colour a shard: of ten that differ well, or of a wheel where there are more."""
    from matplotlib import colormaps

    if shard is None:
        return SEVERAL
    if shards <= 10:
        red, green, blue, alpha = colormaps["tab10"](shard)
    else:
        red, green, blue, alpha = colormaps["turbo"](0.05 + 0.9 * shard / (shards - 1))
    return red, green, blue, alpha


def _ink_on(color: Color) -> str:
    """Readable on the colour: dark on light ones (luma of ITU-R BT.601), white on the others."""
    red, green, blue, _ = color
    return INK if 0.299 * red + 0.587 * green + 0.114 * blue > 0.62 else "white"


def draw_timeline(timeline: Timeline, path: str | PathLike[str]) -> None:
    from matplotlib.figure import Figure

    found = lanes(timeline.events)
    time_s = timeline.time_s or 1e-6
    unit, scale = ("s", 1.0) if time_s >= 1 else ("ms", 1e-3) if time_s >= 1e-3 else ("us", 1e-6)
    height = min(MOST_INCHES, 1.4 + LANE_INCHES * max(1, len(found)))
    figure = Figure(figsize=(WIDTH_INCHES, height), layout="constrained")
    axes = figure.add_subplot()
    axes.set_xlim(0, time_s / scale)
    axes.set_ylim(max(1, len(found)) - 0.5, -0.5)
    shards = 1 + max((e.shard for e in timeline.events if e.shard is not None), default=0)
    for place, events in enumerate(found.values()):
        _draw_lane(axes, place, events, shards, scale)
    devices = sum(events[0].who == name for name, events in found.items())
    axes.axhline(devices - 0.5, color=INK, linewidth=0.8)
    axes.set_yticks(range(len(found)), list(found), fontsize=8)
    axes.set_xlabel(f"time ({unit}); a colour a shard, grey where there are several")
    axes.tick_params(left=False)
    axes.grid(axis="x", color=FAINT, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.set_title(str(timeline).splitlines()[0], fontsize=10, loc="left")
    figure.savefig(path, dpi=110, format="png")


def _draw_lane(axes: Axes, place: int, events: Sequence[Event], shards: int, scale: float) -> None:
    """Events that overlap share the lane's height."""
    from matplotlib.collections import PolyCollection

    stacked = rows(events)
    height = 0.84 / len(stacked)
    for number, row in enumerate(stacked):
        top = place - 0.42 + number * height
        spans = [(event.start_s / scale, event.end_s / scale) for event in row]
        boxes = [
            [(left, top), (right, top), (right, top + height), (left, top + height)]
            for left, right in spans
        ]
        colors = [_color(event.shard, shards) for event in row]
        edge = 0.4 if len(row) < 100 else 0.0  # wider than many a bar, where there are many
        axes.add_collection(
            PolyCollection(boxes, facecolors=colors, edgecolors="white", linewidths=edge)
        )
        for event, color, span in zip(row, colors, spans, strict=True):
            _name(axes, event, span, top + height / 2, min(7.0, 20 * height), _ink_on(color))


def _name(
    axes: Axes, event: Event, span: tuple[float, float], y: float, fontsize: float, ink: str
) -> None:
    """What the event is, or at least its shard, where there is room and it can be read."""
    room = (span[1] - span[0]) / axes.get_xlim()[1] * CHARACTERS_AT_7 * 7 / fontsize
    names = [event.what, "" if event.shard is None else str(event.shard)]
    name = next((name for name in names if len(name) <= room), "")
    if name and fontsize >= 4:
        x = sum(span) / 2
        text = axes.text(x, y, name, fontsize=fontsize, color=ink, ha="center", va="center")
        text.set_in_layout(False)  # or the layout measures thousands that lie inside anyway


class _Box(NamedTuple):
    """An instruction, by its number, carried out in ``column`` at step ``step``."""

    number: int
    step: int
    column: float


def draw(program: Program, path: str | PathLike[str]) -> None:
    """Write an SVG picture of a program: who sends which shard to whom, step by step.

    A column a rank, a row a step: what waits for nothing is step 1, what waits for that step 2. A
    box names the shard, with a sigma where it is reduced. Read downwards: lines come from the ranks
    whose shard is read and lead to those it is written to. A colour a shard.

    >>> import fastreduce, pathlib, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder, "ring.svg")
    ...     fastreduce.draw(fastreduce.algorithms.ring(4), path)
    ...     "<svg" in path.read_text()
    True
    """
    import matplotlib
    from matplotlib.figure import Figure

    program.check_form()
    boxes = _boxes(program)
    columns = _columns(program)
    steps = max((box.step for box in boxes), default=-1) + 1
    abreast = Counter((box.step, round(box.column)) for box in boxes)
    wide = max(1.5, 0.4 * max(abreast.values(), default=1))
    figure = Figure(figsize=(1.2 + wide * len(columns), 1.2 + 1.5 * steps), layout="constrained")
    axes = _columns_and_rows(figure.add_subplot(), columns, steps)
    _draw_lines(axes, program, boxes)
    for box in boxes:
        _draw_box(axes, program, box)
    with matplotlib.rc_context(SVG):
        figure.savefig(path, format="svg", metadata={"Date": None})


def _columns_and_rows(axes: Axes, columns: Mapping[str, float], steps: int) -> Axes:
    for name, x in columns.items():
        axes.plot([x, x], [0, steps], color=FAINT, linewidth=1, zorder=0)
        axes.scatter([x] * (steps + 1), range(steps + 1), s=14, color=INK, zorder=3)
        axes.text(x, -0.12, name, ha="center", va="bottom", fontsize=10, color=INK)
    axes.set_ylim(steps + 0.1, -0.4)
    axes.set_xlim(-0.6 + min(columns.values()), 0.6 + max(columns.values()))
    axes.set_yticks([step + 0.5 for step in range(steps)], [f"step {s + 1}" for s in range(steps)])
    axes.tick_params(left=False, bottom=False, labelbottom=False)
    axes.set_xlabel("\N{GREEK CAPITAL LETTER SIGMA} 3: reduces shard 3;  3: copies it", fontsize=9)
    axes.set_frame_on(False)
    return axes


def _columns(program: Program) -> dict[str, float]:
    """Where each rank is drawn; the host, where it takes part, to their left."""
    uses_host = any(instruction.rank == HOST for instruction in program.instructions)
    ranks = {f"rank {rank}": float(rank) for rank in range(program.k)}
    return ({"host": float(HOST)} if uses_host else {}) | ranks


def _boxes(program: Program) -> list[_Box]:
    """Each instruction at the depth of its dependencies; those of one rank and step abreast."""
    steps: list[int] = []
    for waits in program.dependencies():
        steps.append(max((steps[earlier] + 1 for earlier in waits), default=0))
    abreast: dict[tuple[int, int], list[int]] = {}
    for index, instruction in enumerate(program.instructions):
        abreast.setdefault((steps[index], instruction.rank), []).append(index)
    return [
        _Box(index, step, rank + (place + 0.5) * 0.8 / len(members) - 0.4)
        for (step, rank), members in abreast.items()
        for place, index in enumerate(members)
    ]


def _draw_lines(axes: Axes, program: Program, boxes: Sequence[_Box]) -> None:
    from matplotlib.collections import LineCollection

    lines, colors = [], []
    for number, step, column in boxes:
        _, shard, srcs, dsts = program.instructions[number]
        for buffer, end in [(src, step) for src in srcs] + [(dst, step + 1) for dst in dsts]:
            lines.append([(buffer % program.k, end), (column, step + 0.5)])
            colors.append(_color(shard, program.shards))
    axes.add_collection(LineCollection(lines, colors=colors, linewidths=1.3, zorder=1))


def _draw_box(axes: Axes, program: Program, box: _Box) -> None:
    _, shard, srcs, _ = program.instructions[box.number]
    color = _color(shard, program.shards)
    sign = "\N{GREEK CAPITAL LETTER SIGMA} " if len(srcs) > 1 else ""
    text = axes.text(
        box.column,
        box.step + 0.5,
        f"{sign}{shard}",
        ha="center",
        va="center",
        fontsize=9,
        color=_ink_on(color),
        zorder=2,
        bbox={"boxstyle": "round,pad=0.3", "facecolor": color, "edgecolor": "white"},
    )
    text.set_in_layout(False)
