"""Pictures of the rows of benchmarks/allreduce.py."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from axes import one_legend, save_figure, show_sizes, show_title, where
from figures import OURS, best
from matplotlib.axes import Axes
from matplotlib.colors import TABLEAU_COLORS
from matplotlib.figure import Figure
from rows import MOST_OVER_BEST, Row

# More lines than this cannot be told apart; then only these of our programs are drawn.
MOST_LINES = 14
DRAWN = ("auto", "sharded", "ring")
CALLED = "called one by one"


def draw(rows: list[Row], about: dict[str, Any], path: Path) -> None:
    """Draw bandwidths at ``path``, and beside it auto over the best algorithm if both were
    measured."""
    single = [row for row in rows if row["tensors"] == 1]
    if not single:
        print("# nothing to draw")
        return
    how = "captured in a graph" if any(row["captured"] for row in single) else CALLED
    on = where(about, on_gpu=about["engines"] == "on GPU")
    title = f"allreduce, {how}\n{on}"
    save_figure(draw_bandwidth(single, title), path)
    autos = [x for x in single if x["algorithm"] == "auto" and best(x)["over_best"]]
    if autos:
        save_figure(draw_over_best(autos, title), path.with_stem(f"{path.stem}_over_best"))


def draw_bandwidth(rows: list[Row], title: str) -> Figure:
    """Bytes read and written per second over the size: one field for each dtype and k."""
    types = list(dict.fromkeys(row["type"] for row in rows))
    ranks = sorted({row["k"] for row in rows})
    figure = Figure(figsize=(4.5 * len(ranks), 3.7 * len(types) + 1.3), layout="constrained")
    fields = figure.subplots(len(types), len(ranks), sharey=True, squeeze=False)
    for dtype, across in zip(types, fields, strict=True):
        for k, axes in zip(ranks, across, strict=True):
            own = [row for row in rows if (row["type"], row["k"]) == (dtype, k)]
            _draw_field(axes, own)
            _show_sizes(axes, own)
            axes.set(yscale="log", title=f"{dtype}, {k} ranks")
            axes.yaxis.set_major_formatter("{x:g}")
        across[0].set_ylabel("memory read and written, 2 k n / time, GB/s")
    one_legend(figure)
    show_title(figure, title)
    return figure


def _plot(axes: Axes, rows: Iterable[Row], value: Callable[[Row], float], **style: Any) -> None:
    points = sorted((row["size_bytes"], value(row)) for row in rows)
    if points:
        axes.plot(*zip(*points, strict=True), **style)


def _show_sizes(axes: Axes, rows: Iterable[Row]) -> None:
    show_sizes(axes, (row["size_bytes"] for row in rows), most=9)
    axes.set_xlabel("size per rank, n")


def _draw_field(axes: Axes, rows: Sequence[Row]) -> None:
    names = list(dict.fromkeys((row["engine"], row["algorithm"]) for row in rows))
    if len(names) > MOST_LINES:
        names = [x for x in names if x[0] not in OURS or x[1] in DRAWN]
    some_captured = any(row["captured"] for row in rows)
    # auto runs another algorithm's program, so their lines coincide. Wide, transparent and drawn
    # last, auto's line neither hides the other nor is hidden.
    as_auto = {"linewidth": 5, "alpha": 0.5, "zorder": 5, "color": "tab:red"}
    colors = itertools.cycle(x for x in TABLEAU_COLORS if x not in ("tab:red", "tab:gray"))
    for engine, algorithm in sorted(names, key=lambda x: x[1] == "auto"):
        of_line = [x for x in rows if (x["engine"], x["algorithm"]) == (engine, algorithm)]
        mixed = some_captured and not all(row["captured"] for row in of_line)
        style: dict[str, Any] = {"linewidth": 1.2, "color": next(colors)}
        _plot(
            axes,
            of_line,
            lambda row: best(row)["moved_gb_per_s"],
            label=f"{engine} {algorithm}" + (f", {CALLED}" if mixed else ""),
            linestyle="-" if engine in OURS else "--",
            marker="o",
            markersize=2,
            **(style | as_auto if algorithm == "auto" else style),
        )
    _draw_pass(axes, rows)


def _draw_pass(axes: Axes, rows: Sequence[Row]) -> None:
    """Draw the pass and the limit of each size, from a captured row if there is one."""
    last = {row["size_bytes"]: row for row in sorted(rows, key=lambda row: bool(row["captured"]))}

    def moved(ratio: str) -> Callable[[Row], float]:
        return lambda row: best(row)["moved_gb_per_s"] / best(row)[ratio]

    label = "one pass over the same bytes: no limit"
    _plot(axes, last.values(), moved("of_pass"), label=label, color="gray", linestyle=":")
    _plot(
        axes,
        [row for row in last.values() if row["from_memory"]],
        moved("of_limit"),
        label="limit, data from memory: the fastest round of all",
        color="black",
        linewidth=1,
        linestyle="-.",
        marker="_",
        zorder=6,
    )


def draw_over_best(autos: list[Row], title: str) -> Figure:
    """Shows whether auto is ever slower than an algorithm that can be named."""
    figure = Figure(figsize=(7, 4.6), layout="constrained")
    axes = figure.subplots()
    several = len({(row["engine"], row["type"]) for row in autos}) > 1
    for engine, dtype, k in dict.fromkeys((x["engine"], x["type"], x["k"]) for x in autos):
        of_line = [x for x in autos if (x["engine"], x["type"], x["k"]) == (engine, dtype, k)]
        label = f"{engine}, {dtype}, {k} ranks" if several else f"{k} ranks"
        style = {"marker": "o", "markersize": 3, "label": label}
        _plot(axes, of_line, lambda row: best(row)["over_best"], **style)
    wanted = f"{MOST_OVER_BEST} wanted"
    axes.axhline(MOST_OVER_BEST, color="black", linewidth=1, linestyle=":", label=wanted)
    axes.set_ylabel("time of auto over that of the best")
    axes.set_ylim(bottom=min(0.9, *(best(row)["over_best"] for row in autos)))
    _show_sizes(axes, autos)
    one_legend(figure, ncols=3)
    show_title(figure, title)
    return figure
