"""Topologies made up for tests, and what a program says, told a second time."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import cache

import networkx as nx

from fastreduce import HOST, Instruction, Program, simulate
from fastreduce.algorithms import sharded
from fastreduce.simulation import EVENTS, Costs, Timeline
from fastreduce.topology import Topology

UNCOUNTED_S = 1e-15


@cache
def star(
    devices: int,
    *,
    bytes_per_s: float | tuple[float, ...] = 1e9,
    memory_bytes_per_s: float | None = 1e18,
    latency_s: float = UNCOUNTED_S,
) -> Topology:
    """Devices and one CPU around one switch; ``bytes_per_s`` of each device's link, each way."""
    rates = bytes_per_s if isinstance(bytes_per_s, tuple) else [bytes_per_s] * devices
    graph = nx.DiGraph()
    names = [f"gpu{rank}" for rank in range(devices)]
    graph.add_nodes_from(names, kind="gpu", memory_bytes_per_s=memory_bytes_per_s)
    graph.add_node("cpu", kind="cpu", memory_bytes_per_s=memory_bytes_per_s)
    graph.add_node("switch", kind="switch")
    for name, rate in zip([*names, "cpu"], [*rates, rates[0]], strict=True):
        for link in ((name, "switch"), ("switch", name)):
            graph.add_edge(*link, bytes_per_s=rate, latency_s=latency_s, medium="test")
    return Topology("star", "made up", graph)


def without(topology: Topology, link: tuple[str, str]) -> Topology:
    """The same with a link whose bandwidth nobody could read."""
    graph = nx.DiGraph(topology.graph)
    graph.edges[link]["bytes_per_s"] = None
    return Topology(topology.name, topology.source, graph)


def run(*instructions: tuple, shards: int = 1) -> Program:
    return Program(4, shards, [Instruction(*i) for i in instructions])


def timed(
    program: Program, topology: Topology, nbytes: int, slices: int = 1, costs: Costs = EVENTS
) -> Timeline:
    """A program that need not be an allreduce; in one slice, store and forward, unless told."""
    return simulate(program, topology, nbytes, slices=slices, verify=False, costs=costs)


def one_shard_ring(k: int) -> Program:
    """Round the ring without cutting the data: what rings are compared with."""
    adds = [Instruction(r, 0, (r - 1, r), (r,)) for r in range(1, k)]
    copies = [Instruction(r, 0, ((r - 1) % k,), (r,)) for r in range(k - 1)]
    return Program(k, 1, [*adds, *copies])


def parameter_servers(workers: int, servers: int) -> Program:
    """The first ranks serve: each reduces its shard of every worker's data and gives it to all."""
    everyone = tuple(range(workers))
    return replace(
        sharded(workers),
        shards=servers,
        instructions=[Instruction(s, s, everyone, everyone) for s in range(servers)],
    )


def moves(instruction: Instruction) -> list[tuple[int, int]]:
    """Between which ranks (or the host) an instruction of a program on buffers 0 to k-1 moves."""
    rank, _, srcs, dsts = instruction
    pulled = [(src, rank) for src in srcs if src != rank]
    return pulled + [(rank, dst) for dst in dsts if dst != rank]


def bytes_on_links(program: Program, topology: Topology, nbytes: int) -> Counter:
    def place(rank: int) -> str:
        first = topology.devices[0]
        return topology.host_of(first) if rank == HOST else topology.devices[rank]

    total: Counter = Counter()
    for instruction in program.instructions:
        for src, dst in moves(instruction):
            for link in topology.route(place(src), place(dst)):
                total[link] += nbytes / program.shards
    return total


def conflicts(program: Program) -> list[tuple[int, int]]:
    """Pairs of instructions, earlier first, of which one writes what the other uses."""
    found = []
    for later, b in enumerate(program.instructions):
        for earlier, a in enumerate(program.instructions[:later]):
            clash = {*a.dsts} & {*b.srcs, *b.dsts} or {*a.srcs} & {*b.dsts}
            if a.shard == b.shard and clash:
                found.append((earlier, later))
    return found
