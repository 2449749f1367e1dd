"""The one instruction."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from fastreduce.program import Program

# The executor of an instruction that runs on the CPU, wherever the ranks' buffers are.
HOST = -1


class Instruction(NamedTuple):
    """``rank`` reads ``shard`` of every buffer in ``srcs``, reduces in that order, writes ``dsts``.

    One source is a copy, many are a reduction. A buffer may be both source and destination. Rank
    `HOST` is the CPU: sources are copied to its memory, and the result is copied back.

    >>> Instruction(rank=0, shard=0, srcs=(0, 1), dsts=(0, 1))
    Instruction(rank=0, shard=0, srcs=(0, 1), dsts=(0, 1))
    """

    rank: int
    shard: int
    srcs: tuple[int, ...]
    dsts: tuple[int, ...]

    def __str__(self) -> str:
        if not (isinstance(self.srcs, tuple) and isinstance(self.dsts, tuple)):
            return repr(self)  # malformed; a program says so when it is verified
        who = "the host" if self.rank == HOST else f"rank {self.rank}"
        verb = "copies" if len(self.srcs) == 1 else "reduces"
        return f"{who} {verb} shard {self.shard} of {list(self.srcs)} into {list(self.dsts)}"


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
