"""How fast an allreduce without the host can be at best on a topology."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from fastreduce.algorithms.leader import leader
from fastreduce.algorithms.sharded import sharded
from fastreduce.simulation.costs import EVENTS, Costs, costs_of
from fastreduce.topology import Topology, as_topology
from fastreduce.topology.packing import Packing, pack
from fastreduce.topology.traffic import Floats, Links
from fastreduce.units import duration, nbytes_of

# A plan should not take long. At most so many linear programs are solved (predicted to be enough),
# and above so many devices none: only guessed prices are tried.
PROGRAMS, MANY = 10, 32
# Some programs reach the bound: their simulated time may then be rounded to less.
ROUNDED = 1 - 1e-9


class Bound(NamedTuple):
    """Seconds that no program without the host can beat in the model of `fastreduce.simulate`, and
    what they are for: "cut", "latency" or "memory"."""

    time_s: float
    what: str

    def __str__(self) -> str:
        return f"{duration(self.time_s)} ({self.what})"


def lower_bound(
    topology: Topology | str,
    k: int,
    nbytes: int | str,
    costs: Costs = EVENTS,
    packed: tuple[Links, Packing] | None = None,
) -> Bound:
    """What no program for the first ``k`` devices can beat, in the model of `fastreduce.simulate`,
    unless the host does its work.

    The cut: however the devices are divided into m parts, each byte of the result takes at least
    m - 1 messages from part to part to be summed and m - 1 to be spread, and links carry what they
    carry. `fastreduce.topology.packing.Pricing` has prices, 1 for a second of all links together,
    at which the messages for a byte cost at least ``byte_s``. Link l carries nothing before the
    latency t_l of the nearest message on it, so it is busy for at most T - t_l, or not at all. So T
    is no less than where these times, at their prices, pay for all bytes; whatever the prices.

    Latency: the way to the farthest rank. Memory: each byte is read k times to be summed, at least,
    and written once.

    All this comes after a call's own waits and a launch. They are fewer if rank 0 does all the
    work; but then it receives each of the other ranks' bytes by itself.

    ``packed`` are the links and their packing, if they are known already.

    Raises:
        ValueError: there are not ``k`` devices, or the bandwidth of a link is unknown.

    >>> print(lower_bound("book-pcie4", 4, "160MB"))
    15.01 ms (cut)
    """
    topology, nbytes = as_topology(topology), nbytes_of(nbytes)
    if not 1 <= k <= len(topology.devices):
        most = len(topology.devices)
        raise ValueError(f"k is {k}, want 1 to {most}, the devices of topology {topology.name!r}")
    if k == 1:
        return Bound(0.0, "nothing to do")
    links, packing = packed or _packed(topology, k)
    memories = [topology.graph.nodes[x]["memory_bytes_per_s"] for x in topology.devices[:k]]
    # What is unknown is taken to be fast enough.
    memory_s = 0.0 if None in memories else (k + 1) * nbytes / sum(memories)
    earliest_s = links.earliest_s(costs.ramp_bytes)
    found = {
        "cut": max(
            _paid_s(prices, earliest_s, nbytes * byte_s) for byte_s, prices in packing.pricings
        ),
        "latency": _farthest_s(links.latency_s, costs),
        "memory": memory_s,
    }
    least_s = max(found.values())
    # The cut has latencies, too: of a few bytes it is hardly more than them.
    what = "latency" if found["latency"] > 0.99 * least_s else max(found, key=lambda x: found[x])
    into_first = [b == topology.devices[0] for _, b in links.names]
    received_s = (
        earliest_s[into_first].min() + (k - 1) * nbytes / links.bytes_per_s[into_first].sum()
    )
    one_s, several_s = (costs_of(of(2), costs).call_s + costs.launch_s for of in (leader, sharded))
    time_s = min(several_s + least_s, one_s + max(least_s, float(received_s)))
    return Bound(time_s * ROUNDED, what)


@lru_cache(maxsize=8)
def _packed(topology: Topology, k: int) -> tuple[Links, Packing]:
    """Kept, because plans are made for many sizes."""
    links = Links(topology, k)
    return links, pack(links, programs=PROGRAMS if k <= MANY else 0)


def _paid_s(prices: Floats, earliest_s: Floats, cost_s: float) -> float:
    """The least time T at which prices times T - t_l, summed over the links l that have begun to
    carry by then, are ``cost_s``."""
    order = np.argsort(earliest_s)
    order = order[prices[order] > 0]
    # What T would be with the first link alone, the first two, and so on. A link too many, that
    # begins after T, counts less than nothing, and one too few is missing: both raise T.
    sums = np.cumsum(prices[order] * earliest_s[order])
    return float(((cost_s + sums) / np.cumsum(prices[order])).min())


def _farthest_s(latency_s: Floats, costs: Costs) -> float:
    """The least time from any rank to any other: in one launch, directly or by a third rank that
    writes what it reads; or in several launches, through ranks that pass it on."""
    best = latency_s.copy()
    for rank in range(len(best)):
        best = np.minimum(best, latency_s[:, rank, None] + latency_s[None, rank, :])
    for rank in range(len(best)):
        passed_on = best[:, rank, None] + best[None, rank, :] + costs.launch_s
        best = np.minimum(best, passed_on)
    return float(best.max(initial=-math.inf, where=~np.eye(len(best), dtype=bool)))
