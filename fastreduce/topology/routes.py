"""The best routes through a graph of links, from one node to another."""

from __future__ import annotations

import math
from typing import TypeAlias

import networkx as nx

from fastreduce import _C

Link: TypeAlias = tuple[str, str]
Route: TypeAlias = tuple[Link, ...]


class Routes:
    """The routes of a graph: the direct link, or else the widest route, among those the shortest,
    then the fastest.

    No route leads through a GPU. An unknown bandwidth counts as narrower than any known one, an
    unknown latency as zero. Of equal routes the one found first wins, so that the answer depends
    only on the graph's order. The extension, which knows nodes and links by their numbers, finds a
    route when it is first asked for.
    """

    def __init__(self, graph: nx.DiGraph) -> None:
        self.number = {node: number for number, node in enumerate(graph)}
        self.links: list[Link] = list(graph.edges)
        nodes = [
            (found["kind"] == "gpu", _or_nan(found.get("memory_bytes_per_s")))
            for found in graph.nodes.values()
        ]
        links = [
            (
                self.number[src],
                self.number[dst],
                _or_nan(found["bytes_per_s"]),
                found["latency_s"] or 0.0,
            )
            for src, dst, found in graph.edges(data=True)
        ]
        self.machine = _C.Machine(nodes, links)
        self._found: dict[Link, Route | None] = {}

    def find(self, src: str, dst: str) -> Route | None:
        """The links in order; none from a node to itself; None if no links lead there."""
        if (src, dst) not in self._found:
            route = self.machine.route(self.number[src], self.number[dst])
            named = None if route is None else tuple(self.links[link] for link in route)
            self._found[src, dst] = named
        return self._found[src, dst]


def _or_nan(value: float | None) -> float:
    return math.nan if value is None else value
