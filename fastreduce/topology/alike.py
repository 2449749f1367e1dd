"""Machines of a cluster that are alike, so that a picture can show one of each kind."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import networkx as nx

from fastreduce.topology.cluster import machine_parts

if TYPE_CHECKING:
    from fastreduce.topology.graph import Topology


def inside(node: str) -> str:
    """A node's name within its machine.

    >>> inside("m3/gpu0"), inside("network")
    ('gpu0', 'network')
    """
    return node.rpartition("/")[2]


def one_of_each(
    topology: Topology, colors: Mapping[tuple[str, str], Any]
) -> tuple[Topology, list[list[str]]]:
    """The topology with the first machine of each kind, and the machines of each kind by name.

    Machines are of one kind if their nodes have the same names, but for what stands before the "/",
    and their links the same figures and ``colors``.

    >>> from fastreduce.topology import cluster
    >>> four = cluster("book-pcie4", machines=4, gbit=50)
    >>> one, kinds = one_of_each(four, dict.fromkeys(four.graph.edges))
    >>> one.devices, kinds
    (('m0/gpu0', 'm0/gpu1', 'm0/gpu2', 'm0/gpu3'), [['m0', 'm1', 'm2', 'm3']])
    """
    graph = topology.graph
    alike: dict[Any, list[set[str]]] = defaultdict(list)
    for part in machine_parts(topology):
        nodes = frozenset((inside(node), graph.nodes[node]["kind"]) for node in part)
        edges = *graph.out_edges(part, data=True), *graph.in_edges(part, data=True)
        links = frozenset(
            (inside(src), inside(dst), *sorted(figures.items()), colors[src, dst])
            for src, dst, figures in edges
        )
        alike[nodes, links].append(part)
    kept = nx.DiGraph(graph)  # in the order of the nodes, which a subgraph has not
    kept.remove_nodes_from([x for parts in alike.values() for part in parts[1:] for x in part])
    firsts = ([min(part) for part in parts] for parts in alike.values())
    names = [[node.rpartition("/")[0] or node for node in of_kind] for of_kind in firsts]
    return replace(topology, graph=kept), names
