"""The best routes through a graph of links, from one node to all others."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar

import networkx as nx

Link: TypeAlias = tuple[str, str]
Route: TypeAlias = tuple[Link, ...]
Cost = TypeVar("Cost", float, tuple[int, float])


def routes_from(graph: nx.DiGraph, src: str) -> dict[str, Route]:
    """From ``src`` to each node it can reach: the direct link, or else the widest route, among
    those the shortest, then the fastest.

    There are two searches. The first finds how wide a route to each node can be, the second the
    shortest route of that width. With one search a wide detour on the way to a node behind a narrow
    link would win over the direct way there. No route leads through a GPU. An unknown bandwidth
    counts as narrower than any known one, an unknown latency as zero.
    """
    width = {edge: attributes["bytes_per_s"] or 0 for edge, attributes in graph.edges.items()}
    narrowness, _ = _search(graph, src, float("-inf"), lambda cost, link: max(cost, -width[link]))
    routes: dict[str, Route] = {}
    for wanted in sorted(set(narrowness.values())):

        def longer(cost: tuple[int, float], link: Link, limit: float = -wanted) -> Any:
            latency_s = graph.edges[link]["latency_s"] or 0
            return (cost[0] + 1, cost[1] + latency_s) if width[link] >= limit else None

        _, parents = _search(graph, src, (0, 0.0), longer)
        ends = [node for node, cost in narrowness.items() if cost == wanted]
        routes.update({end: _walk_back(parents, src, end) for end in ends})
    return routes | {dst: ((src, dst),) for dst in graph.successors(src)}


def _search(
    graph: nx.DiGraph, src: str, start: Cost, extend: Callable[[Cost, Link], Cost | None]
) -> tuple[dict[str, Cost], dict[str, str]]:
    """Dijkstra's search: each node's least cost, and the node before it on the way there.

    ``extend`` gives the cost after one more link, or None if the link may not be used. Of equal
    costs the one found first wins, so that the answer depends only on the graph's order.
    """
    costs: dict[str, Cost] = {}
    parents: dict[str, str] = {}
    count = 0
    heap: list[tuple[Cost, int, str, str]] = [(start, count, src, src)]
    while heap:
        cost, _, node, parent = heapq.heappop(heap)
        if node in costs:
            continue
        costs[node], parents[node] = cost, parent
        if node != src and graph.nodes[node]["kind"] == "gpu":
            continue
        for after in graph.successors(node):
            further = None if after in costs else extend(cost, (node, after))
            if further is not None:
                count += 1
                heapq.heappush(heap, (further, count, after, node))
    return costs, parents


def _walk_back(parents: dict[str, str], src: str, end: str) -> Route:
    links = []
    while end != src:
        links.append((parents[end], end))
        end = parents[end]
    return tuple(reversed(links))
