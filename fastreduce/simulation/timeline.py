"""What a simulation found: when each device and each link works, and how long it takes."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from os import PathLike
from typing import TYPE_CHECKING, Any, NamedTuple

from fastreduce.drawing import Drawable, Picture, at_a_glance, figure_of, save
from fastreduce.listing import LazyListing, Listing
from fastreduce.names import counted
from fastreduce.topology.routes import Link
from fastreduce.units import busbw, duration, size

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from fastreduce.simulation.run import Run

LINKS_SHOWN = 8


class Event(NamedTuple):
    """``who`` (a device's name, or a link as a pair of names) does ``what``.

    ``bytes`` cross the link, or are read from or written to other devices by the device. ``shard``
    is None if an event has several.
    """

    who: str | Link
    what: str
    start_s: float
    end_s: float
    bytes: float
    shard: int | None


@dataclass(frozen=True, repr=False)
class Timeline(Drawable):
    """A program's run on a topology, as `fastreduce.simulate` predicts it.

    ``k`` ranks have ``nbytes`` each. ``events`` on devices and links are sorted by their start.
    ``link_bytes_per_s`` has every link of the topology, with None for an unknown bandwidth. ``run``
    makes events when somebody reads them, and knows totals without them.
    ``repr`` is one line, ``print`` adds the busiest links, and a notebook shows a picture.

    >>> import fastreduce
    >>> timeline = fastreduce.simulate(fastreduce.algorithms.sharded(2), "book-pcie4", "160MB")
    >>> timeline
    Timeline(160 MB on each of 2 ranks, book-pcie4: 10.01 ms, 12 events)
    >>> print(timeline)
    160 MB on each of 2 ranks, book-pcie4: 10.01 ms, algbw 15.99 GB/s, busbw 15.99 GB/s
      gpu0 -> pcie0   99.9% busy      160 MB
      gpu1 -> pcie0   99.9% busy      160 MB
      pcie0 -> gpu0   99.9% busy      160 MB
      pcie0 -> gpu1   99.9% busy      160 MB
    """

    title: str
    k: int
    nbytes: int
    events: Sequence[Event]
    link_bytes_per_s: Mapping[Link, float | None]
    run: Run | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        if not isinstance(self.events, LazyListing):
            object.__setattr__(self, "events", Listing(self.events))

    def __getstate__(self) -> dict[str, Any]:
        """For copies and pickles: the events in place of the run that makes them."""
        found = {each.name: getattr(self, each.name) for each in fields(self)}
        return found | {"events": Listing(self.events), "run": None}

    def __repr__(self) -> str:
        events = counted(len(self.events), "event")
        return f"Timeline({self.title}: {duration(self.time_s)}, {events})"

    def _repr_svg_(self) -> Picture | None:
        return at_a_glance(self)

    def _figure(self) -> Figure:
        from fastreduce.simulation.timeline_picture import timeline_figure

        return timeline_figure(self)

    def _marks(self) -> int:
        return len(self.events)

    @cached_property
    def time_s(self) -> float:
        """From the first launch to the last event's end; 0 if there is nothing to do."""
        if self.run:
            return self.run.time_s
        return max((event.end_s for event in self.events), default=0.0)

    @property
    def algbw(self) -> float:
        """The bytes of one rank over the time, in bytes per second."""
        return self.nbytes / self.time_s if self.time_s else math.inf

    @property
    def busbw(self) -> float:
        """Bus bandwidth in bytes per second: see `fastreduce.units.busbw`."""
        return busbw(self.nbytes, self.time_s, self.k)

    @cached_property
    def link_bytes(self) -> dict[Link, float]:
        """How many bytes cross each link of the topology."""
        if self.run:
            return self.run.link_bytes
        total: dict[Link, float] = defaultdict(float)
        for event in self.events:
            if isinstance(event.who, tuple):
                total[event.who] += event.bytes
        return {link: total[link] for link in self.link_bytes_per_s}

    @cached_property
    def busy_share(self) -> dict[Link, float]:
        """Each link's bytes as a share of what it could carry in ``time_s``, from 0 to 1."""
        return {
            link: nbytes / ((self.link_bytes_per_s[link] or math.inf) * self.time_s)
            if nbytes
            else 0.0
            for link, nbytes in self.link_bytes.items()
        }

    def __str__(self) -> str:
        lines = [
            f"{self.title}: {duration(self.time_s)}, "
            f"algbw {self.algbw / 1e9:.2f} GB/s, busbw {self.busbw / 1e9:.2f} GB/s"
        ]
        busiest = sorted(
            (link for link in self.link_bytes if self.link_bytes[link]),
            key=lambda link: -self.busy_share[link],
        )
        names = {link: f"{link[0]} -> {link[1]}" for link in busiest}
        width = max(map(len, names.values()), default=0)
        for link in busiest[:LINKS_SHOWN]:
            share, nbytes = self.busy_share[link], self.link_bytes[link]
            lines.append(f"  {names[link]:{width}}  {share:6.1%} busy  {size(nbytes):>10}")
        if len(busiest) > LINKS_SHOWN:
            rest = busiest[LINKS_SHOWN:]
            lines.append(f"  and {len(rest)} links, at most {self.busy_share[rest[0]]:.1%} busy")
        return "\n".join(lines)

    def to_trace(self, path: str | PathLike[str]) -> None:
        """Write the events as Chrome trace JSON: open it at ui.perfetto.dev or chrome://tracing.

        Each device and each link has a track; times are in microseconds.
        """
        from fastreduce.simulation.trace import write

        write(self, path)

    def to_png(self, path: str | PathLike[str]) -> None:
        """Write a PNG of the events, whatever the suffix of the path.

        Each device and each link has a lane, each shard a colour. `fastreduce.draw` writes SVG too.
        """
        save(figure_of(self), path, "png")
