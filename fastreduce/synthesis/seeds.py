"""What a search starts from: programs that are good on some topology at some size."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from math import inf
from typing import NamedTuple

import networkx as nx

from fastreduce.algorithms import halving_doubling, hierarchical, multi_ring, registry, sharded
from fastreduce.instruction import Instruction
from fastreduce.plan.build import proven
from fastreduce.program import Program
from fastreduce.topology import Topology, rings
from fastreduce.topology.packing import Packing
from fastreduce.topology.rings import Ring, both_ways
from fastreduce.topology.traffic import Tree

# Links within a machine that join its halves.
BETWEEN_SOCKETS = ("qpi", "upi", "xgmi")
# No seed may have more instructions: a search tries many copies of it (predicted).
MOST_INSTRUCTIONS = 20_000


class Seed(NamedTuple):
    """A program, and the turn of each of its instructions, if that is not the first one in which it
    can be."""

    name: str
    program: Program
    steps: tuple[int, ...] = ()

    @property
    def in_turns(self) -> Sequence[int]:
        return self.steps or self.program.steps()


def seeds(topology: Topology, k: int, packing: Packing) -> Iterator[Seed]:
    """Programs for the first ``k`` devices; each is an allreduce, or left out."""
    for seed in _in_steps(topology, k):
        yield seed
        fewer = passed_on(seed.program)
        if len(fewer.instructions) < len(seed.program.instructions):
            yield Seed(f"{seed.name} passed on", fewer)
    for tree in packing.trees:
        yield Seed("packed tree", passed_on(_along([tree], k)))


def _in_steps(topology: Topology, k: int) -> Iterator[Seed]:
    for name in registry:
        program = _proven(name, k)
        if program and not program.whole_tensors and not program.flat.uses_host:
            yield Seed(name, program)
    yield from _meshes(k)
    if k == len(topology.devices):
        yield from _two_levels(topology, k)
        yield from _rings(topology, k)


def _proven(name: str, k: int) -> Program | None:
    """The algorithm's program; None if it is wrong or too large."""
    try:
        program = proven("allreduce", name, k)
    except Exception:  # users write algorithms, so anything may be raised
        return None
    return program if len(program.instructions) <= MOST_INSTRUCTIONS else None


def _rings(topology: Topology, k: int) -> Iterator[Seed]:
    found = rings(topology)
    for name, chosen in (("rings", found), ("rings both ways", both_ways(found))):
        if 2 * k * k * len(chosen) <= MOST_INSTRUCTIONS:
            yield Seed(f"{len(found)} {name}", multi_ring(k, chosen))
    if 4 * k * k * len(found) <= MOST_INSTRUCTIONS:
        yield Seed(f"{len(found)} rings, opened", _opened(k, found))


def _opened(k: int, found: Sequence[Ring]) -> Program:
    """Each ring without one of its links is a path, of which the middle sums: half a ring's steps.

    Every link is left out once, and each path is used in both directions, so that all links have
    the same load in each step.
    """
    slowest = min(ring.bytes_per_s for ring in found)
    paths = [
        tuple(pairwise((order[first:] + order[:first])[::way]))
        for order, bytes_per_s in found
        for _ in range(round(bytes_per_s / slowest))
        for first in range(k)
        for way in (1, -1)
    ]
    return _along(paths, k)


def _meshes(k: int) -> Iterator[Seed]:
    """Some of the ranks sum a part each, and all ranks fetch it: few steps, any pair of ranks."""
    whole = hierarchical(k, 1)
    owners = k
    while owners:
        kept = range(0, k, k // owners)
        shards = {rank: number for number, rank in enumerate(kept)}
        steps = [x._replace(shard=shards[x.shard]) for x in whole.instructions if x.shard in shards]
        yield Seed(f"mesh of {owners}", Program(k, len(kept), steps))
        owners //= 2


def _two_levels(topology: Topology, k: int) -> Iterator[Seed]:
    def mesh(m: int) -> Program:
        return hierarchical(m, 1)

    parts = list(_groupings(topology))
    for groups in parts:
        for name, between in (("mesh", sharded), ("halving-doubling", halving_doubling)):
            yield Seed(f"{groups} groups, {name}", hierarchical(k, groups, mesh, between))
    for outer in parts:
        for inner in parts:
            if inner > outer and inner % outer == 0:
                inside = partial(hierarchical, machines=inner // outer, inside=mesh, between=mesh)
                found = hierarchical(k, outer, inside, mesh)
                yield Seed(f"{outer} groups of {inner // outer}, mesh", found)


def _groupings(topology: Topology) -> Iterator[int]:
    """Into how many equal groups of neighbours the devices fall: machines, sockets, switches."""
    graph, devices = topology.graph, topology.devices
    media = nx.get_edge_attributes(graph, "medium")
    kinds = dict(graph.nodes(data="kind"))
    leaves = {node for node in graph if any(kinds[x] == "gpu" for x in graph.predecessors(node))}
    found = set()
    for cut in (("network",), ("network", *BETWEEN_SOCKETS)):
        for kept in (set(graph), {x for x in graph if kinds[x] != "cpu"}, leaves | {*devices}):
            inside = nx.Graph()
            inside.add_nodes_from(kept)
            ends = [x for x in graph.edges if media[x] not in cut and kept.issuperset(x)]
            inside.add_edges_from(ends)
            group = {x: i for i, part in enumerate(nx.connected_components(inside)) for x in part}
            found.add(_equal_runs([group[device] for device in devices]))
    yield from sorted(found - {0, 1, len(devices)})


def _equal_runs(groups: Sequence[int]) -> int:
    """The number of groups, or 0 if they are not equally long runs."""
    count = len(set(groups))
    size = len(groups) // count
    runs = [set(groups[i : i + size]) for i in range(0, len(groups), size)]
    return count if len(runs) == count and all(len(run) == 1 for run in runs) else 0


def _along(trees: Sequence[Tree], k: int) -> Program:
    """Sums go up each tree to the middle of it, and come down again; each tree has a shard."""
    shapes = [_up_and_down(tree, k) for tree in trees]
    steps = [x._replace(shard=number) for number, shape in enumerate(shapes) for x in shape]
    return Program(k, len(trees), steps)


def _up_and_down(tree: Tree, k: int) -> list[Instruction]:
    linked: list[list[int]] = [[] for _ in range(k)]
    for one, other in tree:
        linked[one].append(other)
        linked[other].append(one)
    # Of two middles the first along the tree: an opened ring's two directions shall have both.
    ranks = [tree[0][0], *(rank for _, rank in tree)]
    root = min(ranks, key=lambda rank: _depth(linked, rank))
    order, parent = [root], {root: -1}
    for rank in order:
        for other in linked[rank]:
            if other not in parent:
                parent[other] = rank
                order.append(other)
    up = []
    for rank in reversed(order):
        below = [other for other in linked[rank] if other != parent[rank]]
        if below:
            up.append(Instruction(rank, 0, tuple(sorted([rank, *below])), (rank,)))
    return [*up, *(Instruction(rank, 0, (parent[rank],), (rank,)) for rank in order[1:])]


def _depth(linked: Sequence[Sequence[int]], root: int) -> float:
    far, order = {root: 0}, [root]
    for rank in order:
        for other in linked[rank]:
            if other not in far:
                far[other] = far[rank] + 1
                order.append(other)
    return max(far.values()) if len(far) == len(linked) else inf


def passed_on(program: Program) -> Program:
    """The program in fewer steps: a rank that sums or fetches a shard writes it in the same launch
    to those that would copy it from there.

    >>> from fastreduce.algorithms import ring
    >>> print(passed_on(ring(2)))
    2 ranks, 2 shards, 2 instructions
       0 rank 0 reduces shard 1 of [1, 0] into [0, 1]
       1 rank 1 reduces shard 0 of [0, 1] into [1, 0]
    """
    found: list[Instruction] = []
    made: dict[tuple[int, int], int] = {}  # by shard and buffer, what wrote it last
    touched: dict[tuple[int, int], int] = {}  # and what read or wrote it last
    for x in program.instructions:
        source, destination = (x.shard, x.srcs[0]), (x.shard, x.dsts[0])
        at = made.get(source, -1) if len(x.srcs) == len(x.dsts) == 1 else -1
        if at >= 0 and found[at].rank == x.srcs[0] and touched.get(destination, -1) <= at:
            found[at] = found[at]._replace(dsts=tuple(dict.fromkeys(found[at].dsts + x.dsts)))
        else:
            at = len(found)
            found.append(x)
            touched.update(((x.shard, src), at) for src in x.srcs)
        for dst in x.dsts:
            made[x.shard, dst] = touched[x.shard, dst] = at
    return replace(program, instructions=found)
