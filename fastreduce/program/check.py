"""What makes an instruction malformed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastreduce.instruction import HOST, Instruction

if TYPE_CHECKING:
    from fastreduce.program.program import Program


def check_instruction(index: int, instruction: Instruction, program: Program) -> None:
    """Raise a ValueError if the program's instruction of this index is malformed."""
    _check_types(index, instruction)
    rank, shard, srcs, dsts = instruction
    known = range(program.buffers)
    problem = (
        f"rank {rank!r} is not one of {program.k}"
        if rank != HOST and rank not in range(program.k)
        else f"shard {shard!r} is not one of {program.shards}"
        if shard not in range(program.shards)
        else "it reads or writes nothing"
        if not srcs or not dsts
        else f"buffer {next(b for b in (*srcs, *dsts) if b not in known)!r} does not exist"
        if any(b not in known for b in (*srcs, *dsts))
        else "it reads one buffer twice, which no sum needs"
        if len(set(srcs)) < len(srcs)
        else "it writes one buffer twice"
        if len(set(dsts)) < len(dsts)
        else None
    )
    if problem:
        raise ValueError(f"instruction {index} ({instruction}): {problem}")


def _check_types(index: int, instruction: object) -> None:
    if not isinstance(instruction, Instruction):
        raise ValueError(
            f"instruction {index} is {instruction!r}, want an Instruction(rank, shard, srcs, dsts)"
        )
    for name in ("srcs", "dsts"):
        found = getattr(instruction, name)
        if not isinstance(found, tuple):
            raise ValueError(
                f"instruction {index}: {name} is {found!r}, want a tuple of buffers, such as (0,)"
            )
