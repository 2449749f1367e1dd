"""A topology with the busy share of each link."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from fastreduce.drawing import Drawable
from fastreduce.simulation.timeline import Timeline
from fastreduce.topology import Topology

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Busy(Drawable):
    """A run on a topology: `fastreduce.draw` colours each link by the share of its time in use.

    ``algorithm`` is the name of what was run, for the picture's title.

    >>> import fastreduce
    >>> from fastreduce.topology import preset
    >>> machine = preset("book-pcie4")
    >>> timeline = fastreduce.simulate(fastreduce.algorithms.sharded(4), machine, "160MB")
    >>> "share of the time in use" in fastreduce.draw(Busy(machine, timeline))
    True
    """

    topology: Topology
    timeline: Timeline
    algorithm: str = "a program"

    def __post_init__(self) -> None:
        if self.timeline.link_bytes_per_s.keys() != set(self.topology.graph.edges):
            raise ValueError(f"the timeline has other links than topology {self.topology.name!r}")

    def _figure(self) -> Figure:
        from fastreduce.simulation.busy_picture import busy_figure

        return busy_figure(self)

    def _marks(self) -> int:
        return self.topology._marks()
