"""Proves a program: the extension carries it out on sets of contributions instead of numbers."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

from fastreduce import _C
from fastreduce.program.check import SMALL

if TYPE_CHECKING:
    from fastreduce.program.program import Goal, Program

ANYTHING = -1


def check_goal(program: Program, flat: _C.KnownProgram, goal: Goal | None) -> None:
    """Raise a ValueError if a shard of a buffer ends with anything but its goal."""
    if goal is None:
        _check_in_place(program)
        _check_size(program)
    goals, goal_of = _cells(program, goal)
    wrong = flat.first_wrong([sorted(ranks) for ranks in goals], goal_of)
    if wrong is not None:
        buffer, shard, once, twice = wrong
        wanted = goals[goal_of[buffer * program.shards + shard]]
        found = int.from_bytes(once, "little"), int.from_bytes(twice, "little")
        raise ValueError(_in_words(program, buffer, shard, *found, wanted))


def _check_in_place(program: Program) -> None:
    if program.buffers != program.k:
        raise ValueError(
            f"{program.k} ranks, {program.buffers} buffers: want one buffer for each rank, because "
            "an allreduce leaves its results where its data was"
        )


def _check_size(program: Program) -> None:
    """Before the proof takes memory for each shard: a file may hold any number of them."""
    if program.k * max(program.k, program.shards) <= SMALL:
        return
    wanted, written = program.k * program.shards, sum(len(x.dsts) for x in program.instructions)
    if written < wanted:
        raise ValueError(
            f"{program.k} ranks of {program.shards} shards: want every shard of every rank written,"
            f" which is {wanted:,}, but the instructions write {written:,}"
        )


def _cells(program: Program, goal: Goal | None) -> tuple[list[frozenset[int]], array[int]]:
    """The different goals, and for each shard of each buffer which of them is its own."""
    if goal is None:
        everyone = frozenset(range(program.k))
        return [everyone], array("i", [0]) * (program.buffers * program.shards)
    number: dict[frozenset[int] | None, int] = {None: ANYTHING}
    goal_of = array("i")
    for buffer in range(program.buffers):
        for shard in range(program.shards):
            goal_of.append(number.setdefault(goal(buffer, shard), len(number) - 1))
    return [ranks for ranks in number if ranks is not None], goal_of


def _in_words(
    program: Program, buffer: int, shard: int, once: int, twice: int, wanted: frozenset[int]
) -> str:
    """``once`` and ``twice`` are bit sets: whose contribution is in it, and whose more than once.
    Bit k: what an output held before the program ran."""
    k, ranks = program.k, range(program.k)
    where = f"rank {buffer % k} ends with shard {shard} of its " + (
        "tensor" if buffer < k else "output"
    )
    missing = [r for r in ranks if r in wanted and not once >> r & 1]
    doubled = [r for r in ranks if twice >> r & 1]
    extra = [r for r in ranks if r not in wanted and once >> r & 1]
    if missing:
        return f"{where} without the contribution of rank {missing}"
    if doubled:
        return f"{where} counting the contribution of rank {doubled} more than once"
    if extra:
        return f"{where} with the contribution of rank {extra}, which is not wanted"
    return f"{where} with what an output held before"
