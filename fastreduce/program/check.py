"""What makes a program or an instruction malformed."""

from __future__ import annotations

from textwrap import shorten
from typing import TYPE_CHECKING

from fastreduce.instruction import HOST, Instruction
from fastreduce.kinds import is_whole
from fastreduce.names import shown

if TYPE_CHECKING:
    from fastreduce.program.program import Program

# Ranks, shards, buffers or slices: the extension counts in 32 bits.
MOST = 2**30
# So many ranks or shards, shards of ranks, or pairs of ranks, take a few MB.
SMALL = 1 << 20


def check_counts(program: Program) -> None:
    """Raise a ValueError if there can be no such numbers of ranks, shards and buffers."""
    k, shards, buffers = program.k, program.shards, program.buffers
    if not (is_whole(k) and is_whole(shards) and is_whole(buffers)):
        raise ValueError(
            f"k is {k!r}, shards is {shards!r}, buffers is {buffers!r}: want whole numbers"
        )
    if min(k, shards, buffers) < 1 or max(k, shards, buffers) > MOST:
        raise ValueError(
            f"{k} ranks, {shards} shards, {buffers} buffers: want at least one of each, at most "
            f"{MOST:,}"
        )
    if buffers not in (k, 2 * k):
        raise ValueError(
            f"{k} ranks, {buffers} buffers: want one buffer for each rank, or two where results "
            "lie in other tensors"
        )


def check_size(program: Program) -> None:
    """Raise a ValueError if it has far more ranks or shards than its instructions use.

    Before anything takes memory for each of them: a file may hold any numbers.
    """
    if max(program.k, program.shards) <= SMALL:
        return
    used = sum(len(x.srcs) + len(x.dsts) for x in program.instructions)
    if used < max(program.k, program.shards):
        raise ValueError(
            f"{program.k} ranks, {program.shards} shards: want each of them read or written, but "
            f"the instructions read and write {used:,} shards in all"
        )


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
        raise ValueError(f"instruction {index} ({shorten(str(instruction), 200)}): {problem}")


def _check_types(index: int, instruction: object) -> None:
    if not isinstance(instruction, Instruction):
        raise ValueError(
            f"instruction {index} is {shown(instruction)}, want an "
            "Instruction(rank, shard, srcs, dsts)"
        )
    for name in ("srcs", "dsts"):
        found = getattr(instruction, name)
        if not isinstance(found, tuple):
            raise ValueError(
                f"instruction {index}: {name} is {shown(found)}, want a tuple of buffers, "
                "such as (0,)"
            )
