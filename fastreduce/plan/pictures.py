"""Pictures of plans: time over size, and a training step from one GPU to many."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from fastreduce.algorithms import registry
from fastreduce.colors import FAINT, INK
from fastreduce.drawing import wrapped
from fastreduce.plan.sizes import Sizes
from fastreduce.plan.step import WhatIf
from fastreduce.units import busbw, duration, size

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_COLORED = 6  # more lines cannot be told apart; the slower ones are grey
GREY = "#bbbbbb"
DOT: Any = {"marker": "o", "markersize": 1.5}  # a line of one size is seen only by its marker
MEASURED = ", fitted to what others measured"

IN_A_ROW = 6  # names of the legend

NEAR = 50.0  # between these, decades would be one tick or two

MOST_TICKS = 6  # more sizes would run into each other


def sizes_figure(sizes: Sizes) -> Figure:
    """The time, where small sizes differ, and the busbw, where large ones do."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11.0, 4.6), layout="constrained")
    times, rates = figure.subplots(1, 2)
    nbytes = [plan.nbytes for plan in sizes.plans]
    shown = _shown(sizes)
    for name in sorted(sizes.algorithms, key=lambda name: name in shown):
        _plot(times, rates, sizes.k, nbytes, sizes.times_s(name), **_style(name, shown))
    for curve in sizes.others:
        covered = [n for n in nbytes if curve.covers(n, sizes.k)]
        seconds = [curve.curve.time_s(n, sizes.k) for n in covered]
        style = {"color": INK, "linestyle": "-.", **DOT, "zorder": 4}
        _plot(times, rates, sizes.k, covered, seconds, **style, label=f"{curve.engine}{MEASURED}")
    for run in sizes.published:
        points = [x for x in run.points if nbytes[0] <= x.nbytes <= nbytes[-1]]
        columns = [x.nbytes for x in points], [x.time_s for x in points]
        style = {"color": INK, "linestyle": "", "marker": "x", "markersize": 4, "zorder": 4}
        _plot(times, rates, sizes.k, *columns, **style, label=f"{run.engine}, published")
    _size_axis(times, "time", nbytes)
    _size_axis(rates, "busbw (GB/s)", nbytes)
    _time_axis(times)
    rates.set_ylim(bottom=0)
    _title(figure, f"{sizes.title}: {sizes.timed}")
    handles, labels = times.get_legend_handles_labels()
    by_name = dict(zip(labels, handles, strict=True))
    named = [*(x for x in (*shown, "others") if x in by_name)]
    named += [x for x in by_name if x not in named]
    figure.legend(
        [by_name[name] for name in named],
        named,
        loc="outside lower left",
        ncols=IN_A_ROW,
        fontsize=8,
        frameon=False,
    )
    return figure


def _plot(
    times: Axes, rates: Axes, k: int, nbytes: Sequence[int], seconds: Sequence[float], **style: Any
) -> None:
    if not nbytes:  # nor is it in the legend
        return
    times.plot(nbytes, seconds, **style)
    if k > 1:
        pairs = zip(nbytes, seconds, strict=True)
        rates.plot(nbytes, [busbw(n, s, k) / 1e9 for n, s in pairs], **style)


def _shown(sizes: Sizes) -> list[str]:
    """The algorithms with a colour: all that are chosen for some size or were asked for besides the
    registered ones, then the fastest."""
    chosen = {plan.algorithm for plan in sizes.plans}
    chosen |= {name for name in sizes.algorithms if name not in registry}

    def behind(name: str) -> float:
        """How many times slower than the fastest, over all sizes."""
        best = [plan.candidates[0].prediction.time_s for plan in sizes.plans]
        pairs = zip(sizes.times_s(name), best, strict=True)
        # One rank has nothing to do, which takes no time.
        return sum(
            math.inf if math.isnan(mine) else math.log(mine / least) if least else 0.0
            for mine, least in pairs
        )

    ordered = sorted(sizes.algorithms, key=lambda name: (name not in chosen, behind(name)))
    return ordered[: max(MOST_COLORED, len(chosen))]


def _style(name: str, shown: Sequence[str]) -> dict[str, Any]:
    if name not in shown:
        return {"color": GREY, "linewidth": 0.9, **DOT, "label": "others", "zorder": 1}
    place = shown.index(name)
    dashes = ("-", "--", ":")[place % 3]  # lines that lie on each other show both colours
    return {
        "color": f"C{place}",
        "linestyle": dashes,
        "linewidth": 1.8,
        "marker": "o",
        "markersize": 3,
        "label": name,
        "zorder": 3,
    }


def _size_axis(axes: Axes, what: str, nbytes: Sequence[int]) -> None:
    from matplotlib.ticker import FixedLocator, LogLocator, NullLocator

    axes.set_xscale("log")
    few = len(nbytes) <= MOST_TICKS
    axes.xaxis.set_major_locator(FixedLocator(nbytes) if few else LogLocator(1000, numticks=20))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(lambda nbytes, _: size(nbytes))
    axes.set_xlabel("bytes on each rank")
    axes.set_title(what, fontsize=9, loc="left")
    _plain(axes)


def _time_axis(axes: Axes) -> None:
    """Ticks at decades, or more of them where times lie near each other."""
    from matplotlib.ticker import LogLocator, NullFormatter

    axes.set_yscale("log")
    low, high = axes.get_ylim()
    if high / low < NEAR:
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter(lambda seconds, _: duration(seconds))
    axes.yaxis.set_minor_formatter(NullFormatter())


def step_figure(found: WhatIf) -> Figure:
    """The efficiency, and where the time of a step goes."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11.0, 4.6), layout="constrained")
    shares, times = figure.subplots(1, 2)
    gpus = [scale.gpus for scale in found.scales]
    places = range(len(gpus))
    shares.plot(places, [100 * x.efficiency for x in found.scales], marker="o", color="C0")
    shares.set_ylim(0, 105)
    shares.set_title("scaling efficiency (%)", fontsize=9, loc="left")
    ms = {
        "computing": [x.alone_s * 1e3 for x in found.scales],
        "sums that nothing hides": [(x.step_s - x.alone_s) * 1e3 for x in found.scales],
    }
    times.bar(places, ms["computing"], color="#9cc4ee", label="computing")
    times.bar(
        places,
        ms["sums that nothing hides"],
        bottom=ms["computing"],
        color="#d9534f",
        label="sums that nothing hides",
    )
    times.plot(
        places,
        [x.allreduce_s * 1e3 for x in found.scales],
        color=INK,
        marker="o",
        markersize=3,
        linewidth=1,
        label="all sums",
    )
    times.set_title("a step (ms)", fontsize=9, loc="left")
    for axes in (shares, times):
        axes.set_xticks(places, [f"{count:,}" for count in gpus], rotation=45 * (len(gpus) > 9))
        axes.set_xlabel("GPUs")
        _plain(axes)
    _title(figure, f"{found.title}\n{found.machine}")
    handles, labels = times.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower right", ncols=3, fontsize=8, frameon=False)
    return figure


def _title(figure: Figure, title: str) -> None:
    lines = wrapped(title, figure.get_figwidth(), 10)
    figure.suptitle(lines, fontsize=10, x=0.01, ha="left", color=INK)


def _plain(axes: Axes) -> None:
    axes.grid(color=FAINT, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
