"""A machine or a cluster as a graph: its nodes, its links, and how fast they are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from typing import TYPE_CHECKING, Any

import networkx as nx

from fastreduce.drawing import Drawable, Picture, at_a_glance
from fastreduce.names import listed
from fastreduce.topology import changes
from fastreduce.topology.check import check
from fastreduce.topology.routes import Link, Route, Routes

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from fastreduce.topology.calibration import Calibration


@dataclass(frozen=True, eq=False)
class Topology(Drawable):
    """Devices, switches, CPUs and network cards, and the links between them.

    Each node has a ``kind``: "gpu", "cpu", "switch" or "nic"; GPUs and CPUs also have
    ``memory_bytes_per_s``, read plus written. Each edge is one direction of a link, with
    ``bytes_per_s``, ``latency_s`` and ``medium`` ("nvlink", "pcie", "network", ...). A figure that
    is None is unknown (see `unknown`). ``source`` says where the figures are from. The graph is
    copied and frozen. ``calibrations`` are curves that were measured on such a machine, of this
    library or of others. A machine that differs in a link has none, nor has a cluster; plans say
    that they go without those of the machine that it is made from (``unused``; not kept in files).

    Raises:
        ValueError: a node or link of the graph is wrong: which, what was found, what was wanted.

    >>> import networkx as nx
    >>> graph = nx.DiGraph()
    >>> graph.add_nodes_from(["gpu0", "gpu1"], kind="gpu", memory_bytes_per_s=900e9)
    >>> for link in [("gpu0", "gpu1"), ("gpu1", "gpu0")]:
    ...     graph.add_edge(*link, bytes_per_s=20e9, latency_s=0.5e-6, medium="nvlink")
    >>> Topology("pair", "an example", graph).route("gpu0", "gpu1")
    (('gpu0', 'gpu1'),)
    """

    name: str
    source: str
    graph: nx.DiGraph
    calibrations: tuple[Calibration, ...] = ()
    unused: tuple[Calibration, ...] = ()

    def __post_init__(self) -> None:
        check(self.name, self.source, self.graph)
        object.__setattr__(self, "graph", nx.freeze(self.graph.copy()))

    def __repr__(self) -> str:
        return (
            f"Topology({self.name!r}: {len(self.devices)} GPUs, "
            f"{len(self.graph)} nodes, {self.graph.number_of_edges()} links)"
        )

    def _repr_svg_(self) -> Picture | None:
        return at_a_glance(self)

    def _figure(self) -> Figure:
        from fastreduce.topology.picture import topology_figure

        return topology_figure(self)

    def _marks(self) -> int:
        return len(self.graph.edges)

    @cached_property
    def devices(self) -> tuple[str, ...]:
        """The GPUs in rank order: rank r of a program is the r-th of them."""
        return tuple(n for n, kind in self.graph.nodes(data="kind") if kind == "gpu")

    def route(self, src: str, dst: str) -> Route:
        """The links from one node to another, in order; none from a node to itself.

        A direct link is preferred, whatever its rate. Otherwise it is the route whose slowest link
        is the fastest, among those the one with the fewest links, then the least latency. No route
        leads through a GPU. On DGX-1 a pair without NVLink goes over PCIe and the CPUs:

        >>> from fastreduce.topology import preset
        >>> preset("dgx1-v100").route("gpu0", "gpu7")
        (('gpu0', 'gpu7'),)
        >>> [node for _, node in preset("dgx1-v100").route("gpu0", "gpu4")]
        ['pcie1', 'cpu0', 'cpu1', 'pcie3', 'gpu4']

        Raises:
            ValueError: a node is not in the graph, or cannot be reached.
        """
        for node in (src, dst):
            if node not in self.graph:
                raise ValueError(
                    f"topology {self.name!r} has no node {node!r}; it has "
                    f"{listed(self.graph, node)}"
                )
        route = self.routes.find(src, dst)
        if route is None:
            raise ValueError(f"topology {self.name!r}: no links lead from {src!r} to {dst!r}")
        return route

    def host_of(self, device: str) -> str:
        """The CPU nearest to a device, whose memory a program's host uses.

        Nearest is the one with the fewest links on the way, then the least latency, then the first.

        >>> from fastreduce.topology import preset
        >>> preset("dgx1-v100").host_of("gpu0"), preset("dgx1-v100").host_of("gpu4")
        ('cpu0', 'cpu1')

        Raises:
            ValueError: no such device, or no CPU that it can reach.
        """
        self.route(device, device)
        cpus: list[str] = [node for node, kind in self.graph.nodes(data="kind") if kind == "cpu"]
        found = {cpu: self.routes.find(device, cpu) for cpu in cpus}
        routes = {cpu: route for cpu, route in found.items() if route is not None}
        if not routes:
            raise ValueError(
                f"topology {self.name!r}: {device!r} reaches no CPU, found CPUs {cpus}; add a node "
                "of kind 'cpu' with links there and back"
            )
        return min(routes, key=lambda cpu: (len(routes[cpu]), self.latency_s(routes[cpu])))

    def latency_s(self, route: Route) -> float:
        """The sum over the route's links, in seconds; an unknown latency counts as zero."""
        return sum(self.graph.edges[link]["latency_s"] or 0.0 for link in route)

    def unknown(self) -> list[str]:
        """The figures that are None, each in words; empty if everything is known.

        >>> from fastreduce.topology import preset
        >>> preset("dgx-h100").unknown()
        []
        """
        everything = [(f"node {name!r}", found) for name, found in self.graph.nodes.items()]
        everything += [
            (f"link {src!r} -> {dst!r}", found) for (src, dst), found in self.graph.edges.items()
        ]
        return [f"{key} of {w}" for w, found in everything for key in found if found[key] is None]

    def without(self, link: Link) -> Topology:
        """This machine without a link, in both directions, whichever direction is named.

        Raises:
            ValueError: no such link, or a GPU could not reach another one without it.

        >>> from fastreduce.topology import preset
        >>> broken = preset("dgx1").without(("gpu0", "gpu7"))
        >>> broken
        Topology('dgx1-v100 without gpu0 - gpu7': 8 GPUs, 14 nodes, 56 links)
        >>> [node for _, node in broken.route("gpu0", "gpu7")]
        ['pcie1', 'gpu7']
        """
        graph = changes.without(self.name, self.graph, link)
        return self._changed(f"without {link[0]} - {link[1]}", graph)

    def scaled(self, link: Link, factor: float) -> Topology:
        """This machine with ``factor`` times the bandwidth on a link, in both directions.

        Latencies stay the same.

        Raises:
            ValueError: no such link, an unknown bandwidth, or a factor that is not above zero.

        >>> from fastreduce.topology import preset
        >>> slow = preset("dgx-h100").scaled(("gpu0", "nvswitch"), 0.5)
        >>> slow.name, slow.graph.edges["nvswitch", "gpu0"]["bytes_per_s"] / 1e9
        ('dgx-h100 with 0.5 x gpu0 - nvswitch', 180.0)
        """
        graph = changes.scaled(self.name, self.graph, link, factor)
        return self._changed(f"with {factor:g} x {link[0]} - {link[1]}", graph)

    def without_peer_access(self) -> Topology:
        """This machine if no GPU could read or write another one's memory.

        Every route between GPUs then goes up into a CPU's memory and down again. NVLinks are
        removed, and a PCIe switch no longer connects GPUs, so it becomes two ("pcie0 up", "pcie0
        down"). Each byte is written and read once there: all of them share half of the memory's
        rate (the link "cpu0 in" to "cpu0 out"), where that is known. In `fastreduce.simulate` a
        transfer uses all links of its route at the same time, as if it were cut into many small
        pieces. The CPU's own work is not counted.

        Raises:
            ValueError: the machine has no CPU, or a GPU cannot reach one.

        >>> from fastreduce.topology import preset
        >>> [node for _, node in preset("book-pcie4").without_peer_access().route("gpu0", "gpu1")]
        ['pcie0 up', 'cpu0 in', 'cpu0 out', 'pcie0 down', 'gpu1']
        """
        graph = changes.without_peer_access(self.name, self.graph)
        return self._changed("without peer access", graph)

    def _changed(self, what: str, graph: nx.DiGraph) -> Topology:
        unused = self.unused + self.calibrations
        name, source = f"{self.name} {what}", f"{self.source}; {what}"
        return Topology(name, source, graph, unused=unused)

    @cached_property
    def routes(self) -> Routes:
        """All routes, of which each is found when it is first asked for."""
        return Routes(self.graph)

    @cached_property
    def bytes_per_s(self) -> Mapping[Link, float | None]:
        """The bandwidth of every link; None if it is unknown."""
        return {(src, dst): found for src, dst, found in self.graph.edges(data="bytes_per_s")}

    def __getstate__(self) -> dict[str, Any]:
        """For copies and pickles: without what is found again."""
        return {field.name: getattr(self, field.name) for field in fields(self)}
