"""A picture of a timeline: a lane for each device and each link, with its events."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from fastreduce.colors import FAINT, INK, color_of, ink_on
from fastreduce.drawing import wrapped
from fastreduce.simulation.rows import lanes, one_of_alike_machines, rows
from fastreduce.simulation.timeline import Event, Timeline

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LANE_INCHES = 0.32
MOST_INCHES = 200.0  # the most for a figure; more lanes become thinner
WIDTH_INCHES = 12.0
CHARACTERS_AT_7 = 160  # so many at 7 points fill the width beside the names


def timeline_figure(timeline: Timeline) -> Figure:
    from matplotlib.figure import Figure

    found = one_of_alike_machines(lanes(timeline.events))
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
    devices = sum(isinstance(events[0].who, str) for events in found.values())
    axes.axhline(devices - 0.5, color=INK, linewidth=0.8)
    axes.set_yticks(range(len(found)), list(found), fontsize=8)
    axes.set_xlabel(f"time ({unit}); one colour per shard, black where an event has several")
    axes.tick_params(left=False)
    axes.grid(axis="x", color=FAINT, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"]].set_visible(False)
    # Above the names of the lanes too, or there would be less room for it.
    title = wrapped(str(timeline).splitlines()[0], WIDTH_INCHES, 10)
    figure.suptitle(title, fontsize=10, x=0.01, ha="left")
    return figure


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
        colors = [color_of(event.shard, shards) for event in row]
        edge = 0.4 if len(row) < 100 else 0.0  # edges would be wider than many of the bars
        bars = PolyCollection(boxes, facecolors=colors, edgecolors="white", linewidths=edge)
        bars.set_antialiased(edge > 0)  # otherwise gaps show between bars that touch
        axes.add_collection(bars)
        for event, color, span in zip(row, colors, spans, strict=True):
            _name(axes, event, span, top + height / 2, min(7.0, 20 * height), ink_on(color))


def _name(
    axes: Axes, event: Event, span: tuple[float, float], y: float, fontsize: float, ink: str
) -> None:
    """Write what the event is, or only its shard, if there is room to read it."""
    room = (span[1] - span[0]) / axes.get_xlim()[1] * CHARACTERS_AT_7 * 7 / fontsize
    names = [event.what, "" if event.shard is None else str(event.shard)]
    name = next((name for name in names if len(name) <= room), "")
    if name and fontsize >= 4:
        x = sum(span) / 2
        text = axes.text(x, y, name, fontsize=fontsize, color=ink, ha="center", va="center")
        text.set_in_layout(False)  # otherwise the layout measures thousands of texts for nothing
