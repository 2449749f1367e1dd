"""Proves a program: carries it out on sets of contributions instead of numbers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from fastreduce.program import Goal, Instruction, Program


class Contributions(NamedTuple):
    """Two bit sets of ranks: ``once`` has those whose contribution is in the value, ``twice`` those
    whose contribution is in it more than once. Bit k: what an output held before the program
    ran."""

    once: int
    twice: int

    def __add__(self, other: tuple[int, ...]) -> Contributions:  # type: ignore[override]
        once, twice = other
        return Contributions(self.once | once, self.twice | twice | (self.once & once))


def values(program: Program) -> Iterator[tuple[list[Contributions], Instruction, Contributions]]:
    """For each instruction in order: what its sources hold, the instruction, and its result."""
    state: dict[tuple[int, int], Contributions] = {}
    for instruction in program.instructions:
        srcs = [
            state.get((src, instruction.shard), _initial(program, src)) for src in instruction.srcs
        ]
        value = Contributions(0, 0)
        for src in srcs:
            value = value + src
        yield srcs, instruction, value
        state.update({(dst, instruction.shard): value for dst in instruction.dsts})


def check_goal(program: Program, goal: Goal) -> None:
    """Raise a ValueError if a shard of a buffer ends with anything but its goal."""
    state: dict[tuple[int, int], Contributions] = {}
    for _, instruction, value in values(program):
        state.update({(dst, instruction.shard): value for dst in instruction.dsts})
    for buffer in range(program.buffers):
        for shard in range(program.shards):
            wanted = goal(buffer, shard)
            if wanted is not None:
                found = state.get((buffer, shard), _initial(program, buffer))
                _check_cell(program, buffer, shard, found, wanted)


def _initial(program: Program, buffer: int) -> Contributions:
    return Contributions(1 << min(buffer, program.k), 0)


def _check_cell(
    program: Program, buffer: int, shard: int, found: Contributions, wanted: frozenset[int]
) -> None:
    k, ranks = program.k, range(program.k)
    where = f"rank {buffer % k} ends with shard {shard} of its " + (
        "tensor" if buffer < k else "output"
    )
    missing = [r for r in ranks if r in wanted and not found.once >> r & 1]
    twice = [r for r in ranks if found.twice >> r & 1]
    extra = [r for r in ranks if r not in wanted and found.once >> r & 1]
    if missing:
        raise ValueError(f"{where} without the contribution of rank {missing}")
    if twice:
        raise ValueError(f"{where} counting the contribution of rank {twice} more than once")
    if extra:
        raise ValueError(f"{where} with the contribution of rank {extra}, which is not wanted")
    if found.once >> k & 1:
        raise ValueError(f"{where} with what an output held before")
