"""A program several times over, in waves: while one part of the data is in the program's second
step, the next part is in its first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fastreduce.program import Program


def in_waves(program: Program, waves: int) -> Program:
    """The program on each of ``waves`` parts of its shards, each part one step behind the one
    before.

    In every turn a rank starts the steps of all waves together, in one launch, so links that
    different steps use carry data at the same time. Every shard is summed as before.

    Raises:
        ValueError: less than one wave.

    >>> from fastreduce.algorithms import tree
    >>> print(in_waves(tree(2), 2))
    2 ranks, 2 shards, 4 instructions
       0 rank 0 reduces shard 0 of [0, 1] into [0]
       1 rank 0 reduces shard 1 of [0, 1] into [0]
       2 rank 1 copies shard 0 of [0] into [1]
       3 rank 1 copies shard 1 of [0] into [1]
    """
    if waves < 1:
        raise ValueError(f"{waves} waves: want at least 1")
    return program if waves == 1 else staggered([program], [(0, wave) for wave in range(waves)])


def staggered(
    programs: Sequence[Program],
    starts: Sequence[tuple[int, int]],
    steps: Sequence[Sequence[int]] | None = None,
) -> Program:
    """Several programs at once, each on shards of its own.

    ``starts`` lists which of ``programs``, and in which turn its first step is; ``steps`` has the
    step of each instruction of each program, if that is not the first one in which it can be.

    >>> from fastreduce.algorithms import ring, sharded
    >>> staggered([ring(4), sharded(4)], [(0, 0), (1, 3), (1, 4)])
    Program(k=4, shards=12, 32 instructions)
    """
    steps = [program.steps() for program in programs] if steps is None else steps
    shards, turns = 0, []
    for which, start in starts:
        for x, step in zip(programs[which].instructions, steps[which], strict=True):
            turns.append((start + step, x.rank, x._replace(shard=shards + x.shard)))
        shards += programs[which].shards
    # A rank's instructions of one turn stand side by side, so that one launch starts them all.
    turns.sort(key=lambda found: found[:2])
    return replace(programs[0], shards=shards, instructions=[x for *_, x in turns])
