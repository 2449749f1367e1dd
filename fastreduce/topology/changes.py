"""Graphs of machines with a link removed or scaled, or without peer access."""

from __future__ import annotations

import math
from typing import Any

import networkx as nx

from fastreduce.kinds import is_number
from fastreduce.names import listed
from fastreduce.topology.routes import Link


def directions(name: str, graph: nx.DiGraph, link: Any) -> list[Link]:
    """The directions in which a link exists, whichever direction ``link`` names.

    Raises:
        ValueError: not a pair of names, or a node or link that does not exist.
    """
    pair = isinstance(link, tuple | list) and len(link) == 2
    if not pair or not all(isinstance(end, str) for end in link):
        raise ValueError(f"link is {link!r}, want the names of its ends, such as ('gpu0', 'gpu1')")
    src, dst = link
    for end in (src, dst):
        if end not in graph:
            raise ValueError(f"topology {name!r} has no node {end!r}; it has {listed(graph, end)}")
    found = [edge for edge in ((src, dst), (dst, src)) if edge in graph.edges]
    if not found:
        linked = ", ".join(graph.to_undirected()[src]) or "nothing"
        raise ValueError(
            f"topology {name!r} has no link between {src!r} and {dst!r}; {src!r} is linked with "
            f"{linked}"
        )
    return found


def without(name: str, graph: nx.DiGraph, link: Link) -> nx.DiGraph:
    changed = nx.DiGraph(graph)
    changed.remove_edges_from(directions(name, graph, link))
    return changed


def scaled(name: str, graph: nx.DiGraph, link: Link, factor: float) -> nx.DiGraph:
    found = directions(name, graph, link)
    if not is_number(factor) or not 0 < factor < math.inf:
        raise ValueError(f"factor is {factor!r}, want a number above zero")
    changed = nx.DiGraph(graph)
    for src, dst in found:
        bytes_per_s = graph.edges[src, dst]["bytes_per_s"]
        if bytes_per_s is None:
            raise ValueError(
                f"topology {name!r}: the bandwidth of link {src!r} -> {dst!r} is unknown, and "
                "cannot be scaled"
            )
        changed.edges[src, dst]["bytes_per_s"] = bytes_per_s * float(factor)
    return changed


def without_peer_access(name: str, graph: nx.DiGraph) -> nx.DiGraph:
    """The graph in which every route between GPUs goes through a CPU.

    Links from which a CPU can be reached only through a GPU are removed, and so are links between
    GPUs and network cards. A switch that could connect two GPUs becomes two switches: one for data
    that goes up to the CPU, one for data that comes down. Each direction of its links belongs to
    one of the two, so no bandwidth is counted twice. A CPU whose memory's rate is known gets two
    ports ("cpu0 in", "cpu0 out"): what goes from one to the other is written to its memory and read
    again, so all of it shares half of the memory's rate.
    """
    kinds = dict(graph.nodes(data="kind"))
    cpus = {node for node, kind in kinds.items() if kind == "cpu"}
    if not cpus:
        raise ValueError(f"topology {name!r} has no CPU over which GPUs could reach each other")
    around = graph.to_undirected(as_view=True).subgraph(n for n in graph if kinds[n] != "gpu")
    # The number of links to the nearest CPU; infinite for GPUs and for nodes behind GPUs.
    far = dict.fromkeys(graph, math.inf)
    far |= nx.multi_source_dijkstra_path_length(around, cpus, weight=None)
    media = graph.edges(data="medium")
    networked = {node for *ends, medium in media if medium == "network" for node in ends}

    def turns(node: str) -> bool:
        """Whether data that comes from below could leave downwards again, away from the CPU."""
        comes = any(far[before] >= far[node] for before in graph.predecessors(node))
        leaves = any(far[after] >= far[node] for after in graph.successors(node))
        inner = 0 < far[node] < math.inf and node not in networked and not _ports(graph, node)
        return inner and comes and leaves

    split = {node for node in graph if turns(node)}
    changed = nx.DiGraph()
    for node, found in graph.nodes.items():
        if kinds[node] == "gpu" or far[node] < math.inf:
            halves = [f"{node} up", f"{node} down"] if node in split else [node]
            changed.add_nodes_from(halves, **found)
    for (src, dst), found in graph.edges.items():
        nearest, farthest = sorted((far[src], far[dst]))
        to_network_card = farthest == math.inf and not networked.isdisjoint((src, dst))
        if nearest == math.inf or to_network_card:
            continue
        leaves = f"{src} up" if far[dst] < far[src] else f"{src} down"
        enters = f"{dst} down" if far[src] < far[dst] else f"{dst} up"
        ends = leaves if src in split else src, enters if dst in split else dst
        changed.add_edge(*ends, **found)
    return _through_memory(changed)


def _through_memory(graph: nx.DiGraph) -> nx.DiGraph:
    """The graph in which what passes through a CPU passes through its memory.

    CPUs hand over to each other on the way in: data is kept in the memory of the CPU that sends it
    down to a GPU.
    """
    memory = dict(graph.nodes(data="memory_bytes_per_s"))
    cpus = [node for node, kind in graph.nodes(data="kind") if kind == "cpu"]
    kept = [node for node in cpus if memory[node] is not None and not _ports(graph, node)]
    changed = nx.DiGraph()
    changed.add_nodes_from(graph.nodes.items())
    for src, dst, found in graph.edges(data=True):
        leaves = src if src not in kept else f"{src} in" if dst in cpus else f"{src} out"
        changed.add_edge(leaves, f"{dst} in" if dst in kept else dst, **found)
    for cpu in kept:
        enters, leaves = f"{cpu} in", f"{cpu} out"
        changed.add_nodes_from((enters, leaves), kind="switch")
        for link in ((enters, leaves), (enters, cpu), (cpu, enters), (cpu, leaves)):
            figures = {"bytes_per_s": memory[cpu] / 2, "latency_s": None, "medium": "memory"}
            changed.add_edge(*link, **figures)
    return changed


def _ports(graph: nx.DiGraph, node: str) -> bool:
    """Whether the node has links to or from a memory."""
    media = [*graph.in_edges(node, data="medium"), *graph.out_edges(node, data="medium")]
    return any(medium == "memory" for _, _, medium in media)
