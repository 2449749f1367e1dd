"""From a name to a verified program in the engines' form."""

from __future__ import annotations

from fastreduce import _C, folders
from fastreduce.algorithms.collectives import goal, program
from fastreduce.algorithms.registration import _on_change
from fastreduce.plan.choose import choose
from fastreduce.program import Program

# A program chosen for another would keep running after its algorithm was replaced.
_on_change.append(_C.forget_programs)


def build(
    collective: str, algorithm: str, k: int, root: int, place: str = "cpu", nbytes: int = 0
) -> _C.Program:
    """Choose and verify; the extension asks once for each combination and keeps the answer."""
    if algorithm == "auto":
        algorithm = choose(place, k, nbytes) if collective == "allreduce" else "direct"
    return compiled(proven(collective, algorithm, k, root))


def proven(collective: str, algorithm: str, k: int, root: int = 0) -> Program:
    """The program of an algorithm by name, or a ValueError that says what is wrong with it."""
    chosen = program(collective, k, root=root, algorithm=algorithm)
    try:
        chosen.verify(goal(collective, k, root))
    except ValueError as error:
        raise ValueError(f"algorithm {algorithm!r} for {k} ranks is wrong: {error}") from None
    return chosen


def proofs_file() -> str:
    """Which devices reach each other takes milliseconds a pair to find out: once for each boot.

    The extension asks before it tries the first pair.
    """
    return str(folders.cache() / "peer_access.txt")


def compiled(chosen: Program) -> _C.Program:
    """The program as the engines take it."""
    instructions = [
        (*instruction, completes, waits)
        for instruction, completes, waits in zip(
            chosen.instructions, chosen.completes(), chosen.dependencies(), strict=True
        )
    ]
    return _C.Program(
        chosen.k,
        chosen.buffers,
        chosen.shards,
        instructions,
        chosen.launches(),
        chosen.whole_tensors,
    )
