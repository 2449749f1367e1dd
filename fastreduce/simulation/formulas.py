"""Closed formulas in the model of `fastreduce.simulate`, for what is too large to simulate.

They assume one slice and equal machines, so the hops of one or two machines stand for all.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import mean
from typing import NamedTuple

import numpy as np

from fastreduce.simulation.costs import EVENTS, Costs
from fastreduce.simulation.flows import max_min
from fastreduce.topology import Topology
from fastreduce.topology.traffic import bytes_per_s


class Hop(NamedTuple):
    """One of several transfers that share links: its rate, and what passes before it has it."""

    bytes_per_s: float
    delay_s: float

    def time_s(self, nbytes: float, costs: Costs = EVENTS) -> float:
        """Counted from the end of the previous launch on the same device."""
        return costs.launch_s + self.delay_s + nbytes / self.bytes_per_s


def hops(topology: Topology, pairs: Iterable[tuple[int, int]], costs: Costs = EVENTS) -> list[Hop]:
    """The hop of each pair of ranks while all of them transfer at once. A pair may come twice.

    Raises:
        ValueError: a bandwidth is unknown.

    >>> from fastreduce.topology import preset
    >>> [hop.bytes_per_s / 1e9 for hop in hops(preset("book-pcie4"), [(0, 1), (0, 2)])]
    [8.0, 8.0]
    """
    named = [(topology.devices[src], topology.devices[dst]) for src, dst in pairs]
    routes = [topology.route(*pair) for pair in named]
    used = [route or (pair,) for route, pair in zip(routes, named, strict=True)]
    width = {link: bytes_per_s(topology, link) for links in used for link in links}
    number = {link: index for index, link in enumerate(width)}
    paths = [[number[link] for link in links] for links in used]
    rates = max_min(paths, np.ones(len(paths)), np.array(list(width.values()))).tolist()
    ramps_s = [costs.ramp_bytes / min(width[link] for link in links) for links in used]
    delays_s = [topology.latency_s(x) + y for x, y in zip(routes, ramps_s, strict=True)]
    return [Hop(*hop) for hop in zip(rates, delays_s, strict=True)]


def ring_s(k: int, nbytes: float, around: Sequence[Hop], costs: Costs = EVENTS) -> float:
    """Seconds of `fastreduce.algorithms.ring`: 2(k-1) steps of 1/k of the bytes.

    ``around`` are the hops of the ring, or of a part of it that repeats. A step waits for the
    previous step of the same rank and for the event of the rank before it. If the first wait sets
    the pace, all go at the rate of the slowest hop; if the second does, the mean hop and the events
    count. The time is the longer of the two.

    >>> round(ring_s(8, 160e6, [Hop(54e9, 0.5e-6)]) * 1e3, 1)
    5.2
    """
    if k == 1:
        return 0.0
    steps, steps_s = 2 * (k - 1), [hop.time_s(nbytes / k, costs) for hop in around]
    waits_s = (steps - 1) * costs.event_wait_s  # the first step waits for nobody
    return costs.call_s + max(steps * max(steps_s), steps * mean(steps_s) + waits_s)


def multi_ring_s(
    k: int, nbytes: float, into: Sequence[Sequence[Hop]], costs: Costs = EVENTS
) -> float:
    """Seconds of `fastreduce.algorithms.multi_ring` with rings of equal rates.

    ``into`` has, for each rank or for a part of the ranks that repeats, its hop of each ring while
    all rings run. A rank starts its part of all rings in one launch, and goes on when the slowest
    has come.

    >>> two = [Hop(50e9, 0.5e-6), Hop(25e9, 4e-6)]
    >>> round(multi_ring_s(16, 1e9, [two]) * 1e3, 1)
    37.7
    """
    if k == 1:
        return 0.0
    of_ring = nbytes / len(into[0])
    slowest = [max(hops, key=lambda hop: hop.time_s(of_ring / k, costs)) for hops in into]
    return ring_s(k, of_ring, slowest, costs)


def hierarchical_s(
    k: int,
    machines: int,
    nbytes: float,
    inside: Sequence[Hop],
    between: Sequence[Hop],
    costs: Costs = EVENTS,
) -> float:
    """Seconds of `fastreduce.algorithms.hierarchical`: each rank fetches its share from the others
    of its machine, allreduces it in a ring with one rank of each machine, and fetches the other
    shares.

    ``inside`` are the hops while each rank reads from every other rank of its machine; ``between``
    are the hops while each rank reads from the rank with its number in the previous machine.

    >>> round(hierarchical_s(16, 2, 1e9, [Hop(50e9, 0.5e-6)], [Hop(50e9, 4e-6)]) * 1e3, 1)
    7.5
    """
    share_bytes = nbytes / (k // machines)
    fetch_s = max((hop.time_s(share_bytes, costs) for hop in inside), default=0.0)
    steps = bool(inside) + (machines > 1)
    ring_of_machines_s = ring_s(machines, share_bytes, between, costs._replace(call_s=0.0))
    waits_s = costs.event_wait_s * steps
    return bool(steps) * costs.call_s + 2 * fetch_s + ring_of_machines_s + waits_s
