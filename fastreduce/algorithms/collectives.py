"""The collectives: the result that each must have, and their programs, made from allreduce's."""

from __future__ import annotations

from collections.abc import Callable

from fastreduce.algorithms.leader import leader
from fastreduce.algorithms.registration import described, find
from fastreduce.algorithms.sharded import sharded
from fastreduce.instruction import Instruction
from fastreduce.program import Goal, Program


def program(collective: str, k: int, *, root: int = 0, algorithm: str = "leader") -> Program:
    """The program of a collective for ``k`` ranks.

    Each of the four other collectives is a part of an allreduce: reduce is `leader` that writes to
    the root only, broadcast is `leader` that reads from the root only, reduce_scatter is `sharded`
    that does not write to all, and all_gather is `sharded` that does not reduce.

    Between processes, what a rank writes to another's buffer must be copied out of shared memory.
    There the algorithm "pull" makes each rank write its own buffers only, and in an allreduce
    by "pulled-leader" every rank reduces everything into an output of its own.

    Raises:
        ValueError: unknown algorithm, or a user's algorithm that did not return a program for k
            ranks.

    >>> print(program("reduce", 3, root=1))
    3 ranks, 1 shard, 1 instruction
       0 rank 1 reduces shard 0 of [0, 1, 2] into [1]
    """
    outputs = tuple(range(k, 2 * k))
    if algorithm == "pull":
        return _pulled(program(collective, k, root=root))
    match collective:
        case "allreduce" if algorithm == "pulled-leader":
            return _pulled(_cut(leader(k), lambda x: (x.rank, x.srcs, outputs), 2 * k))
        case "reduce":
            return _cut(leader(k), lambda x: (root, x.srcs, (root,)))
        case "broadcast":
            others = tuple(rank for rank in range(k) if rank != root)
            return _cut(leader(k), lambda x: (root, (root,), others))
        case "reduce_scatter":
            return _cut(sharded(k), lambda x: (x.rank, x.srcs, (outputs[x.rank],)), 2 * k)
        case "all_gather":
            return _cut(sharded(k), lambda x: (x.rank, (x.rank,), outputs), 2 * k)
    try:
        found = find(algorithm)(k)
    except (OSError, ValueError):
        raise
    except Exception as error:  # users write algorithms, so anything may be raised
        raise ValueError(f"{described(algorithm)} raised for {k} ranks: {error!r}") from error
    if not isinstance(found, Program):
        raise ValueError(
            f"{described(algorithm)} returned {type(found).__name__} for {k} ranks; want a Program"
        )
    if found.k != k or found.buffers != k:
        raise ValueError(
            f"{described(algorithm)}: its program is for {found.k} ranks and {found.buffers} "
            f"buffers; the call has {k} ranks, and an allreduce as many buffers"
        )
    return found


def _cut(
    whole: Program,
    parts: Callable[[Instruction], tuple[int, tuple[int, ...], tuple[int, ...]]],
    buffers: int = 0,
) -> Program:
    """The program with the rank, sources and destinations of each instruction replaced."""
    steps = []
    for x in whole.instructions:
        rank, srcs, dsts = parts(x)
        if dsts:
            steps.append(Instruction(rank, x.shard, srcs, dsts))
    return Program(whole.k, whole.shards, steps, buffers)


def _pulled(whole: Program) -> Program:
    """The program in which each buffer is written by its own rank."""
    k = whole.k
    steps = [
        Instruction(dst % k, x.shard, x.srcs, (dst,)) for x in whole.instructions for dst in x.dsts
    ]
    return Program(k, whole.shards, steps, whole.buffers)


def goal(collective: str, k: int, root: int = 0, buffers: int = 0) -> Goal:
    """What each shard of each buffer must hold when the collective is done.

    An allreduce with ``buffers`` for outputs may leave anything in the others.
    """
    everyone = frozenset(range(k))

    def allreduce(buffer: int, shard: int) -> frozenset[int] | None:
        return everyone if buffer >= buffers - k else None

    def reduce(buffer: int, shard: int) -> frozenset[int]:
        return everyone if buffer == root else frozenset([buffer])

    def broadcast(buffer: int, shard: int) -> frozenset[int]:
        return frozenset([root])

    def reduce_scatter(buffer: int, shard: int) -> frozenset[int] | None:
        if buffer < k:
            return frozenset([buffer])
        return everyone if buffer - k == shard else None

    def all_gather(buffer: int, shard: int) -> frozenset[int]:
        return frozenset([buffer if buffer < k else shard])

    goals: dict[str, Goal] = {
        "allreduce": allreduce,
        "reduce": reduce,
        "broadcast": broadcast,
        "reduce_scatter": reduce_scatter,
        "all_gather": all_gather,
    }
    return goals[collective]
