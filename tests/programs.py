"""Programs carried out on plain Python values, and random programs. Shares no code with the
package: what a program means is said here a second time."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable
from fractions import Fraction
from typing import Any

from hypothesis import strategies as st

from fastreduce import Instruction, Program

State = dict[tuple[int, int], Any]  # by (buffer, shard)


def carry_out(
    program: Program,
    initial: Callable[[int, int], Any],
    reduce: Callable[[int, list[Any]], Any],
    order: Iterable[int] | None = None,
) -> State:
    """The memory after the program's instructions in the given order (default: as written).

    ``initial(buffer, shard)`` is what a cell holds at first, ``reduce(index, values)`` what
    instruction ``index`` makes of its sources.
    """
    state = {(b, s): initial(b, s) for b in range(program.buffers) for s in range(program.shards)}
    for index in range(len(program.instructions)) if order is None else order:
        _, shard, srcs, dsts = program.instructions[index]
        value = reduce(index, [state[src, shard] for src in srcs])
        state.update({(dst, shard): value for dst in dsts})
    return state


def history(program: Program, order: Iterable[int] | None = None) -> State:
    """What each cell went through, as a nested expression: unlike a sum, it knows orders."""
    return carry_out(program, lambda b, s: (b, s), lambda index, values: (index, *values), order)


def sums(program: Program, values: list[int], order: Iterable[int] | None = None) -> State:
    return carry_out(program, lambda b, s: values[b] * (s + 1), lambda _, srcs: sum(srcs), order)


def is_well_formed(program: Program) -> bool:
    return all(
        -1 <= x.rank < program.k  # -1 is the host
        and 0 <= x.shard < program.shards
        and x.srcs
        and x.dsts
        and all(0 <= buffer < program.buffers for buffer in (*x.srcs, *x.dsts))
        and len(set(x.dsts)) == len(x.dsts)
        for x in program.instructions
    )


def is_allreduce(program: Program) -> bool:
    """By brute force, for one choice of numbers that stands for all.

    No instruction sequence can count a rank ``base`` times, so a sum of powers of ``base`` says
    exactly how often each rank is in it.
    """
    if not is_well_formed(program):
        return False
    base = 1 + math.prod(len(x.srcs) for x in program.instructions)
    powers = [base**rank for rank in range(program.k)]
    found = carry_out(program, lambda b, s: powers[b], lambda _, srcs: sum(srcs))
    return all(value == sum(powers) for value in found.values())


def averages(program: Program, values: list[int]) -> State:
    """Divides where the program says that sums are complete, and only there."""
    completes = program.completes()

    def reduce(index: int, srcs: list[Fraction]) -> Fraction:
        return sum(srcs, Fraction(0)) / (program.k if completes[index] else 1)

    return carry_out(program, lambda b, s: Fraction(values[b]), reduce)


def legal_order(waits: list[tuple[int, ...]], choose: random.Random) -> list[int]:
    """One of the orders in which each instruction comes after those it waits for."""
    followers: dict[int, list[int]] = {}
    missing = [len(indices) for indices in waits]
    for index, indices in enumerate(waits):
        for earlier in indices:
            followers.setdefault(earlier, []).append(index)
    ready = [index for index, count in enumerate(missing) if count == 0]
    order = []
    while ready:
        index = ready.pop(choose.randrange(len(ready)))
        order.append(index)
        for follower in followers.get(index, []):
            missing[follower] -= 1
            if missing[follower] == 0:
                ready.append(follower)
    assert len(order) == len(waits)
    return order


@st.composite
def any_programs(draw: st.DrawFn) -> Program:
    """Well-formed programs that reach no goal in particular."""
    k, shards = draw(st.integers(1, 4)), draw(st.integers(1, 2))
    ranks = st.integers(0, k - 1)
    instructions = st.builds(
        Instruction,
        ranks,
        st.integers(0, shards - 1),
        st.lists(ranks, min_size=1, max_size=3, unique=True).map(tuple),
        st.lists(ranks, min_size=1, unique=True).map(tuple),
    )
    return Program(k, shards, draw(st.lists(instructions, max_size=8)))


def right_program(choose: random.Random, k: int, shards: int) -> Program:
    """A random tree for each shard, its order of ranks, its copies and the shards interleaved."""
    queues = [_right_shard(choose, k, shard) for shard in range(shards)]
    instructions = []
    while any(queues):
        instructions.append(choose.choice([queue for queue in queues if queue]).pop(0))
    return Program(k, shards, instructions)


def _right_shard(choose: random.Random, k: int, shard: int) -> list[Instruction]:
    parts = list(range(k))  # buffers that hold partial sums, each of different ranks
    steps = []
    while len(parts) > 1:
        choose.shuffle(parts)
        srcs, parts = parts[:2], parts[2:]
        while parts and choose.random() < 0.3:
            srcs.append(parts.pop())
        free = [b for b in range(k) if b not in parts]  # holding nothing that is still needed
        dst = choose.choice(free)
        steps.append(Instruction(choose.randrange(k), shard, tuple(srcs), (dst,)))
        parts.append(dst)
    have, lack = list(parts), [b for b in range(k) if b not in parts]
    while lack:
        choose.shuffle(lack)
        cut = choose.randint(1, len(lack))
        steps.append(
            Instruction(choose.randrange(k), shard, (choose.choice(have),), tuple(lack[:cut]))
        )
        have, lack = have + lack[:cut], lack[cut:]
    return steps


right_programs = st.builds(
    right_program, st.randoms(use_true_random=False), st.integers(1, 16), st.integers(1, 4)
)
