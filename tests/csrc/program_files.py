"""Programs as text, for the C++ tests: all that the package has, and forms that it has not."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from programs import right_program

from fastreduce import Instruction, Program
from fastreduce.algorithms.collectives import goal, program
from fastreduce.algorithms.registration import registry
from fastreduce.program import Goal

RANKS = (*range(1, 10), 20)


def pairs(k: int) -> Program:
    """Two shards for each rank, which start together."""
    everyone = tuple(range(k))
    return Program(k, 2 * k, [Instruction(s // 2, s, everyone, everyone) for s in range(2 * k)])


def scrambled(k: int) -> Program:
    """Random trees, whose orders and copies nobody would think of."""
    return right_program(random.Random(k), k, 3)


FORMS = {"pairs": pairs, "scrambled": scrambled}


class Named(NamedTuple):
    name: str
    collective: str
    program: Program
    goal: Goal


def every_program() -> Iterator[Named]:
    for name, algorithm in {**FORMS, **registry}.items():
        for k in RANKS:
            yield Named(name, "allreduce", algorithm(k), goal("allreduce", k))
    for collective in ("reduce", "broadcast", "reduce_scatter", "all_gather"):
        for k in RANKS:
            root = k - 1 if collective in ("reduce", "broadcast") else 0
            chosen = program(collective, k, root=root)
            yield Named(collective, collective, chosen, goal(collective, k, root))


def programs_of_processes() -> Iterator[Named]:
    """Those that one process has too, those that the backend takes, and one whose ranks pass on
    what they have got."""
    yield from every_program()
    for k in RANKS:
        everything = {"allreduce": "pulled-leader", "broadcast": "pull", "all_gather": "pull"}
        for collective, algorithm in everything.items():
            chosen = program(collective, k, algorithm=algorithm)
            wanted = goal(collective, k, buffers=chosen.buffers)
            yield Named(algorithm, collective, chosen, wanted)
        chain = Program(k, 1, [Instruction(rank, 0, (rank - 1,), (rank,)) for rank in range(1, k)])
        yield Named("chain", "broadcast", chain, goal("broadcast", k))


def some(programs: Iterable[Named]) -> list[Named]:
    """All for up to 4 ranks, and of the others, which take longest, every third."""
    programs = [*programs]
    large = [named for named in programs if named.program.k > 4]
    return [named for named in programs if named.program.k <= 4] + large[::3]


def holds_one_shard(named: Named, buffer: int) -> bool:
    k = named.program.k
    return named.collective == ("all_gather" if buffer < k else "reduce_scatter")


def listed(numbers: Iterable[int]) -> str:
    numbers = [int(number) for number in numbers]
    return " ".join(map(str, [len(numbers), *numbers]))


Indices = Sequence[tuple[int, ...]]


def text_of(named: Named, waits: Indices | None = None, launches: Indices | None = None) -> str:
    """A line for each step, then what starts together, then what must be where in the end."""
    one = named.program
    waits = waits or one.dependencies()
    launches = launches or one.launches()
    lines = [
        f"program {named.name} {named.collective} {one.k} {one.buffers} {one.shards}",
        f"{one.whole_tensors:d} {one.in_rank_order():d} {len(one.instructions)}",
        listed(holds_one_shard(named, buffer) for buffer in range(one.buffers)),
    ]
    for step, completes, earlier in zip(one.instructions, one.completes(), waits, strict=True):
        lists = (listed(x) for x in (step.srcs, step.dsts, earlier))
        lines.append(" ".join([f"{step.rank} {step.shard} {completes:d}", *lists]))
    lines += [str(len(launches)), *map(listed, launches)]
    for buffer in range(one.buffers):
        for shard in range(one.shards):
            lines.append(listed(sorted(named.goal(buffer, shard) or ())))
    return "\n".join(lines) + "\n"


def write_programs(path: Path, programs: Iterable[Named] | None = None) -> Path:
    path.write_text("".join(map(text_of, programs or every_program())))
    return path
