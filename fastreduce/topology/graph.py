"""A machine or a cluster as a graph: what is there, what links it, and how fast."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import networkx as nx

from fastreduce.topology.routes import Route, routes_from

# What a node of each kind must tell. A figure may be None: unknown, and never guessed.
NODES = {
    "gpu": ("kind", "memory_bytes_per_s"),
    "cpu": ("kind", "memory_bytes_per_s"),
    "switch": ("kind",),
    "nic": ("kind",),
}
LINK = ("bytes_per_s", "latency_s", "medium")


@dataclass(frozen=True, eq=False)
class Topology:
    """Devices, switches, CPUs and network cards, and the links between them.

    Each node has a ``kind``: "gpu", "cpu", "switch" or "nic"; GPUs and CPUs also have
    ``memory_bytes_per_s``, read plus written. Each edge is one direction of a link, with
    ``bytes_per_s``, ``latency_s`` and ``medium`` ("nvlink", "pcie", "network", ...). A figure that
    is None is unknown (see `unknown`). ``source`` says where the figures are from. The graph is
    copied and frozen.

    Raises:
        ValueError: which node or link of the graph is wrong, what was found, what was wanted.

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

    def __post_init__(self) -> None:
        check(self.name, self.source, self.graph)
        object.__setattr__(self, "graph", nx.freeze(self.graph.copy()))

    def __repr__(self) -> str:
        return (
            f"Topology({self.name!r}: {len(self.devices)} GPUs, "
            f"{len(self.graph)} nodes, {self.graph.number_of_edges()} links)"
        )

    @cached_property
    def devices(self) -> tuple[str, ...]:
        """The GPUs in rank order: rank r of a program is the r-th of them."""
        return tuple(n for n, kind in self.graph.nodes(data="kind") if kind == "gpu")

    def route(self, src: str, dst: str) -> Route:
        """The links from one node to another, in order; none from a node to itself.

        A direct link is preferred, whatever its rate. Otherwise the route whose narrowest link is
        widest, among those the one with the fewest links, then the least latency. GPUs send and
        receive but never pass on. On DGX-1 a pair without NVLink goes over PCIe and the CPUs:

        >>> from fastreduce.topology import preset
        >>> preset("dgx1-v100").route("gpu0", "gpu7")
        (('gpu0', 'gpu7'),)
        >>> [node for _, node in preset("dgx1-v100").route("gpu0", "gpu4")]
        ['pcie1', 'cpu0', 'cpu1', 'pcie3', 'gpu4']

        Raises:
            ValueError: a node that is not in the graph, or that cannot be reached.
        """
        for node in (src, dst):
            if node not in self.graph:
                raise ValueError(
                    f"topology {self.name!r} has no node {node!r}; it has {', '.join(self.graph)}"
                )
        routes = self._routes_from(src)
        if dst not in routes:
            raise ValueError(f"topology {self.name!r}: no links lead from {src!r} to {dst!r}")
        return routes[dst]

    def host_of(self, device: str) -> str:
        """The CPU nearest to a device: there a program's host keeps what comes from it.

        The one with the fewest links on the way, then the least latency, then the first.

        >>> from fastreduce.topology import preset
        >>> preset("dgx1-v100").host_of("gpu0"), preset("dgx1-v100").host_of("gpu4")
        ('cpu0', 'cpu1')

        Raises:
            ValueError: no such device, or no CPU that it can reach.
        """
        self.route(device, device)
        routes = self._routes_from(device)
        cpus: list[str] = [node for node, kind in self.graph.nodes(data="kind") if kind == "cpu"]
        reached = [cpu for cpu in cpus if cpu in routes]
        if not reached:
            raise ValueError(
                f"topology {self.name!r}: {device!r} reaches no CPU, found CPUs {cpus}; add a node "
                "of kind 'cpu' with links there and back"
            )
        return min(reached, key=lambda cpu: (len(routes[cpu]), self.latency_s(routes[cpu])))

    def latency_s(self, route: Route) -> float:
        """The sum over the route's links, in seconds; an unknown one counts as none."""
        return sum(self.graph.edges[link]["latency_s"] or 0.0 for link in route)

    def unknown(self) -> list[str]:
        """The figures that are None, each in words; empty where everything is known.

        >>> from fastreduce.topology import preset
        >>> preset("dgx-h100").unknown()
        []
        """
        everything = [(f"node {name!r}", found) for name, found in self.graph.nodes.items()]
        everything += [
            (f"link {src!r} -> {dst!r}", found) for (src, dst), found in self.graph.edges.items()
        ]
        return [f"{key} of {w}" for w, found in everything for key in found if found[key] is None]

    @cached_property
    def _routes(self) -> dict[str, dict[str, Route]]:
        return {}

    def _routes_from(self, src: str) -> dict[str, Route]:
        if src not in self._routes:
            self._routes[src] = routes_from(self.graph, src)
        return self._routes[src]


def check(name: str, source: str, graph: nx.DiGraph) -> None:
    """Every rule about a topology.

    Raises:
        ValueError: the first that is broken: where, what was found, what was wanted.
    """
    where = f"topology {name!r}"
    for key, value in (("name", name), ("source", source)):
        if not isinstance(value, str) or not value:
            raise ValueError(f"{where}: its {key} is {value!r}, want words")
    if not isinstance(graph, nx.DiGraph) or graph.is_multigraph():
        raise ValueError(f"{where}: its graph is a {type(graph).__name__}, want a networkx DiGraph")
    for node, found in graph.nodes.items():
        _check_node(f"{where}: node {node!r}", node, found)
    for (src, dst), found in graph.edges.items():
        link = f"{where}: link {src!r} -> {dst!r}"
        if src == dst:
            raise ValueError(f"{link} leads nowhere, want two different nodes")
        _check_attributes(link, found, LINK)
        if not isinstance(found["medium"], str) or not found["medium"]:
            raise ValueError(f"{link}: medium is {found['medium']!r}, want a name such as 'pcie'")
    _check_connected(where, graph)


def _check_node(where: str, name: Any, found: Mapping[str, Any]) -> None:
    if not isinstance(name, str) or not name:
        raise ValueError(f"{where}: its name is not a string, want one such as 'gpu0'")
    kind = found.get("kind")
    if not isinstance(kind, str) or kind not in NODES:
        raise ValueError(f"{where}: kind is {kind!r}, want one of {', '.join(NODES)}")
    _check_attributes(where, found, NODES[kind])


def expect_topology(found: object) -> None:
    if not isinstance(found, Topology):
        want = "want a Topology, such as fastreduce.topology.preset('dgx1')"
        raise TypeError(f"topology is {found!r}; {want}")


def _check_attributes(where: str, found: Mapping[str, Any], wanted: tuple[str, ...]) -> None:
    missing = [key for key in wanted if key not in found]
    extra = [key for key in found if key not in wanted]
    if missing or extra:
        what = f"without {missing[0]!r}" if missing else f"with {extra[0]!r}, which is not known"
        raise ValueError(f"{where} is {what}; want {', '.join(wanted)}")
    for key in wanted:
        value = found[key]
        if not key.endswith("_s") or value is None:
            continue
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not 1e-30 <= value <= 1e30:  # what lies beyond is a slip, and overflows
            unit = "bytes a second" if key.endswith("bytes_per_s") else "seconds"
            raise ValueError(
                f"{where}: {key} is {value!r}, want {unit} above zero (1e-30 to 1e30), or None "
                "where unknown"
            )


def _check_connected(where: str, graph: nx.DiGraph) -> None:
    """Each GPU must reach each other one without passing through a third."""
    gpus = {node for node, kind in graph.nodes(data="kind") if kind == "gpu"}
    if not gpus:
        raise ValueError(f"{where} has no GPU, want at least one node of kind 'gpu'")
    between = nx.condensation(graph.subgraph(node for node in graph if node not in gpus))
    part_of = between.graph["mapping"]
    reached: dict[int, set[str]] = {}
    for part in reversed(list(nx.topological_sort(between))):
        members = between.nodes[part]["members"]
        ends = {end for node in members for end in graph.successors(node) if end in gpus}
        reached[part] = ends.union(*(reached[after] for after in between.successors(part)))
    for gpu in (node for node in graph if node in gpus):
        neighbours = set(graph.successors(gpu))
        parts = {part_of[node] for node in neighbours - gpus}
        lost = gpus.difference({gpu}, neighbours, *(reached[part] for part in parts))
        if lost:
            raise ValueError(
                f"{where}: no links lead from {gpu!r} to {min(lost)!r}; want each GPU to reach "
                "each other one, and none to pass on what is not its own"
            )
