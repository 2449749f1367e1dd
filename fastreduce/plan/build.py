"""From an algorithm's name to a verified program in the form that the engines take."""

from __future__ import annotations

from fastreduce import _C
from fastreduce.algorithms.collectives import goal, program
from fastreduce.algorithms.registration import INTERNAL, described, find, on_change
from fastreduce.plan.choose import choose
from fastreduce.plan.table_files import tuned
from fastreduce.program import Program

# Otherwise the program built for a name would still run after its algorithm was replaced.
on_change(_C.forget_schedules)


def build(
    collective: str,
    algorithm: str,
    k: int,
    root: int,
    place: str = "cpu",
    nbytes: int = 0,
    variable: str = "",
) -> _C.Schedule:
    """Choose and verify. The extension calls this once per combination and keeps the answer.

    ``variable`` is the value of FASTREDUCE_ALGORITHM that it has seen, which may change meanwhile.
    """
    if _C.cuda_engines:
        tuned()  # its sizes for the copy engine hold for every algorithm
    if algorithm in INTERNAL:  # named in a call
        find(algorithm)  # raises
    if algorithm == "auto":
        algorithm = choose(place, k, nbytes, collective, variable)
    return compiled(proven(collective, algorithm, k, root))


def proven(collective: str, algorithm: str, k: int, root: int = 0) -> Program:
    """The program of an algorithm by name, or a ValueError that says what is wrong with it."""
    chosen = program(collective, k, root=root, algorithm=algorithm)
    try:
        # Of a plain allreduce `verify` knows the goal, and refuses what is large and wrong at once.
        plain = collective == "allreduce" and chosen.buffers == k
        chosen.verify(None if plain else goal(collective, k, root, chosen.buffers))
    except ValueError as error:
        raise ValueError(f"{described(algorithm)} for {k} ranks is wrong: {error}") from None
    return chosen


def compiled(chosen: Program) -> _C.Schedule:
    """The program as the engines take it."""
    return chosen.flat.schedule(chosen.whole_tensors, chosen.sliced or 0)
