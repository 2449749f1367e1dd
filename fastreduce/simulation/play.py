"""Simulates stages on a topology's links, event by event."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from fastreduce.simulation.costs import Costs
from fastreduce.simulation.flows import MOMENT_S, Network
from fastreduce.simulation.stages import Stage
from fastreduce.simulation.timeline import Link

if TYPE_CHECKING:
    from fastreduce.topology import Topology

Span: TypeAlias = tuple[float, float]


class Spans(NamedTuple):
    """Start and end, in seconds, of each stage and each transfer (in the order of stages)."""

    stages: list[Span]
    transfers: list[Span]


class Routes:
    """The routes between pairs of nodes, with latencies and bandwidths.

    ``links`` and ``delay_s`` are by pair. A delay, before the first byte moves, is the latency of
    the links and the time that ``ramp_bytes`` take on the slowest of them. ``paths[index[pair]]``
    lists the pair's links as indices into ``bytes_per_s``. The link from a node to itself is its
    memory.

    Raises:
        ValueError: a bandwidth is unknown.
    """

    def __init__(self, topology: Topology, used: Iterable[Link], ramp_bytes: float) -> None:
        pairs = tuple(dict.fromkeys(used))
        routes = {(src, dst): topology.route(src, dst) for src, dst in pairs}
        self.links: dict[Link, tuple[Link, ...]] = {p: routes[p] or (p,) for p in pairs}
        self.index = {pair: number for number, pair in enumerate(pairs)}
        shared = dict.fromkeys(link for links in self.links.values() for link in links)
        self.bytes_per_s = [_bytes_per_s(topology, link) for link in shared]
        position = {link: number for number, link in enumerate(shared)}
        self.paths = [[position[link] for link in links] for links in self.links.values()]
        self.delay_s = {
            pair: topology.latency_s(routes[pair])
            + ramp_bytes / min(self.bytes_per_s[link] for link in path)
            for pair, path in zip(pairs, self.paths, strict=True)
        }


def _bytes_per_s(topology: Topology, link: Link) -> float:
    src, dst = link
    what = f"the link {src!r} -> {dst!r}" if src != dst else f"the memory of {src!r}"
    found: float | None = (
        topology.graph.edges[link]["bytes_per_s"]
        if src != dst
        else topology.graph.nodes[src]["memory_bytes_per_s"]
    )
    if found is None:
        raise ValueError(
            f"topology {topology.name!r}: the program uses {what}, whose bandwidth is unknown; "
            "want it in bytes a second (save the topology, fill it in, load it)"
        )
    return found


def play(stages: Sequence[Stage], routes: Routes, costs: Costs) -> Spans:
    """When each stage and each transfer starts and ends."""
    run = _Run(stages, routes, costs)
    run.until_done()
    return Spans(
        list(zip(run.ready_s, run.end_s, strict=True)),
        list(zip(run.transfer_start_s, run.transfer_end_s, strict=True)),
    )


class _Run:
    def __init__(self, stages: Sequence[Stage], routes: Routes, costs: Costs) -> None:
        self._costs = costs
        network = Network(routes.paths, routes.bytes_per_s)
        self._stages, self._routes, self._network = stages, routes, network
        self._followers: list[list[int]] = [[] for _ in stages]
        for number, stage in enumerate(stages):
            for earlier in stage.waits:
                self._followers[earlier].append(number)
        self._waits = [len(stage.waits) for stage in stages]
        self._unfinished = [len(stage.transfers) for stage in stages]
        self._transfers = [(n, t) for n, stage in enumerate(stages) for t in stage.transfers]
        self._first = [0] * len(stages)
        for number, stage in enumerate(stages[:-1]):
            self._first[number + 1] = self._first[number] + len(stage.transfers)
        self.ready_s, self.end_s = [costs.call_s] * len(stages), [math.nan] * len(stages)
        self.transfer_start_s = [math.nan] * len(self._transfers)
        self.transfer_end_s = [math.nan] * len(self._transfers)
        self._starting: list[tuple[float, int]] = []  # (when, transfer), a heap

    def until_done(self) -> None:
        for number, waits in enumerate(self._waits):
            if not waits:
                self._begin(number)
        now_s = 0.0
        while True:
            due_s = self._starting[0][0] if self._starting else math.inf
            # As differences: a short time added to a late one would be lost to rounding, and time
            # would stop.
            wait_s = max(0.0, min(self._network.next_s(), due_s - now_s))
            if wait_s == math.inf:
                return
            ended = self._network.advance(wait_s)
            now_s += wait_s
            for transfer in ended:
                self._end(transfer, now_s)
            while self._starting and self._starting[0][0] <= now_s + MOMENT_S:
                self._start(heapq.heappop(self._starting)[1], now_s)

    def _begin(self, number: int) -> None:
        stage = self._stages[number]
        launched_s = self.ready_s[number] + (self._costs.launch_s if stage.launches else 0.0)
        for transfer, (src, dst, *_) in enumerate(stage.transfers, self._first[number]):
            start_s = launched_s + self._routes.delay_s[src, dst]
            heapq.heappush(self._starting, (start_s, transfer))

    def _start(self, transfer: int, now_s: float) -> None:
        _, (src, dst, _, _, nbytes) = self._transfers[transfer]
        self.transfer_start_s[transfer] = now_s
        self._network.start(transfer, self._routes.index[src, dst], nbytes)

    def _end(self, transfer: int, now_s: float) -> None:
        number = self._transfers[transfer][0]
        self.transfer_end_s[transfer] = now_s
        self._unfinished[number] -= 1
        if self._unfinished[number]:
            return
        self.end_s[number] = now_s
        for follower in self._followers[number]:
            elsewhere = self._stages[follower].lane != self._stages[number].lane
            ready_s = now_s + (self._costs.event_wait_s if elsewhere else 0.0)
            self.ready_s[follower] = max(self.ready_s[follower], ready_s)
            self._waits[follower] -= 1
            if not self._waits[follower]:
                self._begin(follower)
