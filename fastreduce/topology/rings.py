"""Finds rings that can use a topology's links at the same time."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import networkx as nx

from fastreduce.topology.cluster import equal_machines, machine_parts
from fastreduce.topology.graph import Topology
from fastreduce.topology.named import as_topology
from fastreduce.topology.routes import Link, Route

# Limits on the search, in steps: for one ring of a given rate, and for all. If direct links form a
# ring, the search mostly finds it at once, so it gives up early. On each preset, also on
# DGX-1 without one to three of its links, all of it takes 1 ms (AMD EPYC, family 26 model 2,
# 2026-11-27).
STEPS_PER_RING = 200
STEPS = 30000


class Ring(NamedTuple):
    """The ranks in the order of a ring, from rank 0, and its rate in bytes per second."""

    order: tuple[int, ...]
    bytes_per_s: float


def rings(topology: Topology | str) -> list[Ring]:
    """Rings that can run at once, with the highest total rate that is found, fastest first.

    ``topology`` may be a name, as `as_topology` takes it.

    If direct links between GPUs form rings, the result is Hamiltonian cycles that share no
    bandwidth in either direction, so that each may also be used in reverse. The search for them is
    bounded (`STEPS`); on DGX-1 no rings carry more than those it finds. If switches or CPUs join
    the GPUs, any order is a ring: the result goes on to the nearest GPU that is left, and its rate
    is that of its slowest step while all steps run. On several machines there are as many rings as
    the machines have network cards (those of one switch count as one), where that carries more:
    each enters a machine by another card (rail rings). A single GPU's ring has no step and an
    infinite rate.

    *Dive into Deep Learning*, section 12.7.2, finds these on DGX-1 (its GPU 1 is rank 0):

    >>> for ring in rings("dgx1-v100"):
    ...     print(ring.order, ring.bytes_per_s / 1e9)
    (0, 1, 2, 3, 4, 5, 6, 7) 45.0
    (0, 3, 5, 2, 4, 7, 1, 6) 22.5

    Raises:
        ValueError: the bandwidth of a link that is needed is unknown.
    """
    return _found(as_topology(topology))[0]


def directed(topology: Topology) -> list[Ring]:
    """The rings in the directions in which they run: rail rings one way, because together they use
    both directions of every card; all others both ways."""
    found, one_way = _found(topology)
    return found if one_way else both_ways(found)


def both_ways(found: Sequence[Ring]) -> list[Ring]:
    """Each ring in both directions, because links carry data both ways at once."""
    return [*found, *(Ring((0, *order[:0:-1]), bytes_per_s) for order, bytes_per_s in found)]


def _found(topology: Topology) -> tuple[list[Ring], bool]:
    """The rings, and whether they are rail rings."""
    direct = _direct(topology)
    found = direct or _fastest([[_nearest(topology)], *_rails(topology)])
    # The ring of two devices uses both directions of their only link by itself.
    check(topology, both_ways(found) if direct and len(topology.devices) > 2 else found)
    return found, len(found) > 1 and not direct


def check(topology: Topology, found: Sequence[Ring]) -> None:
    """Check that each ring holds every device once, and that together they fit on the links, each
    in its direction.

    Raises:
        ValueError: a ring is not one, or a link would carry more than it can; which, and how much.
    """
    ranks = list(range(len(topology.devices)))
    load: dict[Link, float] = {}
    for order, bytes_per_s in found:
        if sorted(order) != ranks or order[0] != 0:
            raise ValueError(f"ring {order}: want each of ranks 0 to {ranks[-1]} once, from rank 0")
        if not bytes_per_s > 0:
            raise ValueError(f"ring {order}: its rate is {bytes_per_s!r}, want one above zero")
        for link, uses in _uses(topology, order).items():
            load[link] = load.get(link, 0) + uses * bytes_per_s
    for (src, dst), used in load.items():
        can = _rate(topology, (src, dst))
        if used > can * (1 + 1e-9):
            raise ValueError(
                f"rings {[ring.order for ring in found]} put {used / 1e9:g} GB/s on the link "
                f"{src!r} -> {dst!r}, which carries {can / 1e9:g}"
            )


def _nearest(topology: Topology) -> Ring:
    """Go on from each device to the nearest: widest route, fewest links, least latency."""
    devices = topology.devices

    def distance(src: int, dst: int) -> tuple[float, int, float, int]:
        route = topology.route(devices[src], devices[dst])
        return -_width(topology, route), len(route), topology.latency_s(route), dst

    order, left = [0], set(range(1, len(devices)))
    while left:
        order.append(min(left, key=lambda rank: distance(order[-1], rank)))
        left.remove(order[-1])
    return _at_once(topology, [tuple(order)])[0]


def _rails(topology: Topology) -> Iterator[list[Ring]]:
    """Rings through all machines that enter them by different cards, if machines are alike.

    A ring enters and leaves a machine at GPUs with the widest routes to the next one, and passes
    the machine's other GPUs in between. There is one ring for each card of these GPUs, or one for
    each GPU of them.
    """
    parts = equal_machines(topology)
    if len(parts) < 2:
        return
    size = len(parts[0])
    inside = _direct(_machine(topology)) or [_nearest(_machine(topology))]
    local = inside[0].order
    routes = [topology.route(device, parts[1][0]) for device in parts[0]]
    media = nx.get_edge_attributes(topology.graph, "medium")
    cards = [next(link for link in route if media[link] == "network") for route in routes]
    widths = [_width(topology, route) for route in routes]
    gates = [rank for rank in local if widths[rank] == max(widths)]
    others = [rank for rank in local if rank not in gates]
    for starts in ({cards[rank]: rank for rank in reversed(gates)}.values(), gates):
        orders = []
        for start in map(gates.index, sorted(starts)):
            around = [gates[start], *others, *gates[start + 1 :], *gates[:start]]
            orders.append([m * size + rank for m in range(len(parts)) for rank in around])
        yield _at_once(topology, [tuple(_from_zero(order)) for order in orders])


def _width(topology: Topology, route: Route) -> float:
    """The rate of its slowest link; an unknown one is slower than any other."""
    return min(topology.graph.edges[link]["bytes_per_s"] or 0 for link in route)


def _fastest(several: Sequence[list[Ring]]) -> list[Ring]:
    """Those that carry the most together; of equal ones the first."""
    totals = [sum(ring.bytes_per_s for ring in found) for found in several]
    # Rounding makes equal ones differ, from Python 3.12 on in another way than before.
    return next(
        found
        for found, total in zip(several, totals, strict=True)
        if total * (1 + 1e-9) >= max(totals)
    )


def _at_once(topology: Topology, orders: Sequence[tuple[int, ...]]) -> list[Ring]:
    """These rings at equal rates, as high as the links allow."""
    uses = sum((_uses(topology, order) for order in orders), Counter[Link]())
    rate = min((_rate(topology, link) / count for link, count in uses.items()), default=math.inf)
    return [Ring(order, rate) for order in orders]


def _from_zero(order: Sequence[int]) -> Sequence[int]:
    start = order.index(0)
    return [*order[start:], *order[:start]]


def _machine(topology: Topology) -> Topology:
    """The first machine of several."""
    nodes = machine_parts(topology)[0]
    # A view of a part of a graph may list its nodes in any order; ranks are in that of the whole.
    kept = nx.DiGraph(topology.graph)
    kept.remove_nodes_from([node for node in topology.graph if node not in nodes])
    return Topology(f"one of {topology.name}", topology.source, kept)


def _uses(topology: Topology, order: Sequence[int]) -> Counter[Link]:
    """How many steps of a ring cross each link, when every rank sends to the next one."""
    names = [topology.devices[rank] for rank in order]
    steps = zip(names, names[1:] + names[:1], strict=True)
    return Counter(link for src, dst in steps for link in topology.route(src, dst))


def _rate(topology: Topology, link: Link) -> float:
    rate = topology.graph.edges[link]["bytes_per_s"]
    if rate is None:
        raise ValueError(
            f"topology {topology.name!r}: the bandwidth of link {link[0]!r} -> {link[1]!r} is "
            "unknown, and a ring crosses it; save the topology, fill in bytes_per_s, and load it"
        )
    return float(rate)


def _direct(topology: Topology) -> list[Ring]:
    """The best rings over direct links between devices; none if these form no ring."""
    graph, devices = topology.graph, topology.devices
    if len(devices) < 2 or not nx.is_strongly_connected(graph.subgraph(devices)):
        return []
    free = [[0.0] * len(devices) for _ in devices]
    for i, src in enumerate(devices):
        for j, dst in enumerate(devices):
            if graph.has_edge(src, dst) and graph.has_edge(dst, src):
                free[i][j] = min(_rate(topology, (src, dst)), _rate(topology, (dst, src)))
    if len(devices) == 2:
        return [Ring((0, 1), free[0][1])] if free[0][1] else []
    search = _Search(free)
    search.pack(free, [])
    return sorted(search.best, key=lambda ring: -ring.bytes_per_s)


class _Search:
    """Backtracking over sets of rings: the widest ring first, then the widest of what is left.

    ``free[i][j]`` is the bandwidth left between ranks i and j. The search ends when no set can
    carry more, or after `STEPS` steps; `best` is the best set found so far.
    """

    def __init__(self, free: list[list[float]]) -> None:
        self.k = len(free)
        self.best: list[Ring] = []
        self.steps_left = STEPS
        # A ring uses two links of each rank, so all rings together get at most half of what its
        # links carry.
        self.bound = min(sum(row) for row in free) / 2
        self.least = 1e-9 * max(map(max, free))

    def pack(self, free: list[list[float]], chosen: list[Ring]) -> None:
        if sum(r.bytes_per_s for r in chosen) > sum(r.bytes_per_s for r in self.best) + self.least:
            self.best = chosen
        for width in sorted({x for row in free for x in row if x > self.least}, reverse=True):
            found = False
            for order in self.cycles(free, width):
                found = True
                after = [row.copy() for row in free]
                for i, j in zip(order, (*order[1:], 0), strict=True):
                    after[i][j] = after[j][i] = after[i][j] - width
                self.pack(after, [*chosen, Ring(order, width)])
                done = sum(ring.bytes_per_s for ring in self.best) >= self.bound - self.least
                if done or self.steps_left <= 0:
                    return
            if found:
                return

    def cycles(self, free: list[list[float]], width: float) -> Iterator[tuple[int, ...]]:
        """The Hamiltonian cycles of links with ``width`` left, each in one direction only."""
        linked = [{j for j, x in enumerate(row) if x >= width} for row in free]
        steps = 0

        def extend(path: tuple[int, ...], left: frozenset[int]) -> Iterator[tuple[int, ...]]:
            nonlocal steps
            steps += 1
            self.steps_left -= 1
            if steps > STEPS_PER_RING or self.steps_left < 0:
                return
            if not left:
                if 0 in linked[path[-1]] and path[1] < path[-1]:
                    yield path
                return
            usable = left | {0, path[-1]}
            ways = {rank: len(linked[rank] & usable) for rank in left}
            if min(ways.values()) < 2:
                return
            # The rank with the fewest links left comes first, because later it might have none.
            for rank in sorted(linked[path[-1]] & left, key=lambda rank: (ways[rank], rank)):
                yield from extend((*path, rank), left - {rank})

        return extend((0,), frozenset(range(1, self.k)))
