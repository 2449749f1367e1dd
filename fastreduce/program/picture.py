"""A picture of a program: a column for each rank, a row for each step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from fastreduce.colors import FAINT, INK, color_of, ink_on
from fastreduce.instruction import HOST
from fastreduce.program.program import Program

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


class _Box(NamedTuple):
    """An instruction, by its number, carried out in ``column`` at step ``step``."""

    number: int
    step: int
    column: float


def program_figure(program: Program) -> Figure:
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
    return figure


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
    """Where each rank is drawn; the host, if the program uses it, is left of them."""
    uses_host = any(instruction.rank == HOST for instruction in program.instructions)
    ranks = {f"rank {rank}": float(rank) for rank in range(program.k)}
    return ({"host": float(HOST)} if uses_host else {}) | ranks


def _boxes(program: Program) -> list[_Box]:
    """Each instruction at the depth of its dependencies; those of one rank and step share a row."""
    abreast: dict[tuple[int, int], list[int]] = {}
    for index, step in enumerate(program.steps()):
        abreast.setdefault((step, program.instructions[index].rank), []).append(index)
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
            colors.append(color_of(shard, program.shards))
    axes.add_collection(LineCollection(lines, colors=colors, linewidths=1.3, zorder=1))


def _draw_box(axes: Axes, program: Program, box: _Box) -> None:
    _, shard, srcs, _ = program.instructions[box.number]
    color = color_of(shard, program.shards)
    sign = "\N{GREEK CAPITAL LETTER SIGMA} " if len(srcs) > 1 else ""
    text = axes.text(
        box.column,
        box.step + 0.5,
        f"{sign}{shard}",
        ha="center",
        va="center",
        fontsize=9,
        color=ink_on(color),
        zorder=2,
        bbox={"boxstyle": "round,pad=0.3", "facecolor": color, "edgecolor": "white"},
    )
    text.set_in_layout(False)
