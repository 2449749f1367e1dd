"""Every rule about a topology."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import networkx as nx

from fastreduce.names import shown

# The attributes of each kind of node. A figure may be None if it is unknown; it is never guessed.
NODES = {
    "gpu": ("kind", "memory_bytes_per_s"),
    "cpu": ("kind", "memory_bytes_per_s"),
    "switch": ("kind",),
    "nic": ("kind",),
}
LINK = ("bytes_per_s", "latency_s", "medium")


def check(name: str, source: str, graph: nx.DiGraph) -> None:
    """Raise a ValueError for the first broken rule: where, what was found, what was wanted."""
    where = f"topology {name!r}"
    for key, value in (("name", name), ("source", source)):
        if not isinstance(value, str) or not value:
            raise ValueError(f"{where}: its {key} is {shown(value)}, want words")
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
            medium = shown(found["medium"])
            raise ValueError(f"{link}: medium is {medium}, want a name such as 'pcie'")
    _check_connected(where, graph)


def _check_node(where: str, name: Any, found: Mapping[str, Any]) -> None:
    if not isinstance(name, str) or not name:
        raise ValueError(f"{where}: its name is not a string, want one such as 'gpu0'")
    kind = found.get("kind")
    if not isinstance(kind, str) or kind not in NODES:
        raise ValueError(f"{where}: kind is {shown(kind)}, want one of {', '.join(NODES)}")
    _check_attributes(where, found, NODES[kind])


def _check_attributes(where: str, found: Mapping[str, Any], wanted: tuple[str, ...]) -> None:
    missing = [key for key in wanted if key not in found]
    extra = [key for key in found if key not in wanted]
    if missing or extra:
        unknown = f"with {shown(extra[0])}, which is not known" if extra else ""
        what = f"without {missing[0]!r}" if missing else unknown
        raise ValueError(f"{where} is {what}; want {', '.join(wanted)}")
    for key in wanted:
        value = found[key]
        if not key.endswith("_s") or value is None:
            continue
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not 1e-30 <= value <= 1e30:  # beyond is a mistake, and overflows
            unit = "bytes per second" if key.endswith("bytes_per_s") else "seconds"
            raise ValueError(
                f"{where}: {key} is {shown(value)}, want {unit} above zero (1e-30 to 1e30), or "
                "None where unknown"
            )


def _check_connected(where: str, graph: nx.DiGraph) -> None:
    """Each GPU must reach every other GPU without passing through a third one."""
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
                "every other GPU without passing through a third one"
            )
