"""Which program serves a call: chosen, verified, and handed to the engine."""

from __future__ import annotations

from fastreduce import _C
from fastreduce.algorithms.registry import _on_change, names, registry
from fastreduce.program import Goal, Instruction, Program

# A program chosen for another would keep running after its algorithm was replaced.
_on_change.append(_C.forget_programs)

# On the CPU a tile of the buffer passes the whole program while it is in cache, whoever executes:
# the fewest instructions win, and that is one. benchmarks/list_allreduce.py compares.
AUTO = "leader"


def program(collective: str, k: int, *, root: int = 0, algorithm: str = "auto") -> Program:
    """The program that serves a collective for ``k`` ranks.

    The four collectives besides allreduce are direct: each result is one instruction of the rank
    that holds it (reduce, reduce_scatter) or of the one that has the data (broadcast, all_gather).

    Raises:
        ValueError: unknown algorithm, or a custom algorithm that returned no program for k ranks.

    >>> print(program("reduce", 3, root=1))
    3 ranks, 1 shards, 1 instructions
       0 rank 1 reduces shard 0 of [0, 1, 2] into [1]
    """
    ranks = tuple(range(k))
    outputs = tuple(range(k, 2 * k))
    match collective:
        case "reduce":
            return Program(k, 1, [Instruction(root, 0, ranks, (root,))])
        case "broadcast":
            others = tuple(rank for rank in ranks if rank != root)
            return Program(k, 1, [Instruction(root, 0, (root,), others)] if others else [])
        case "reduce_scatter":
            return Program(k, k, [Instruction(r, r, ranks, (outputs[r],)) for r in ranks], 2 * k)
        case "all_gather":
            return Program(k, k, [Instruction(r, r, (r,), outputs) for r in ranks], 2 * k)
    name = AUTO if algorithm == "auto" else algorithm
    if name not in registry:
        raise ValueError(f"unknown algorithm {name!r}; known are auto, {', '.join(names())}")
    found = registry[name](k)
    if not isinstance(found, Program) or found.k != k or found.buffers != k:
        raise ValueError(f"algorithm {name!r} returned no program for {k} ranks but {found!r}")
    return found


def goal(collective: str, k: int, root: int = 0) -> Goal:
    """What each shard of each buffer must hold when the collective is done."""
    everyone = frozenset(range(k))

    def allreduce(buffer: int, shard: int) -> frozenset[int]:
        return everyone

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


def build(collective: str, algorithm: str, k: int, root: int) -> _C.Program:
    """Choose and verify; the extension asks once for each combination and keeps the answer."""
    chosen = program(collective, k, root=root, algorithm=algorithm)
    try:
        chosen.verify(goal(collective, k, root))
    except ValueError as error:
        raise ValueError(f"algorithm {algorithm!r} for {k} ranks is wrong: {error}") from None
    instructions = [
        (*instruction, completes, waits)
        for instruction, completes, waits in zip(
            chosen.instructions, chosen.completes(), chosen.dependencies(), strict=True
        )
    ]
    return _C.Program(
        k, chosen.buffers, chosen.shards, instructions, chosen.launches(), chosen.whole_tensors
    )
