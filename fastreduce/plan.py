"""Which program serves a call: chosen, verified, and handed to the engine."""

from __future__ import annotations

import math
import os

from fastreduce import _C, folders
from fastreduce.algorithms.registry import _on_change, names, registry
from fastreduce.goals import goal, program
from fastreduce.program import Program

# A program chosen for another would keep running after its algorithm was replaced.
_on_change.append(_C.forget_programs)

# Overrides "auto", as NCCL_ALGO does in NCCL; what a call names itself stays.
VARIABLE = "FASTREDUCE_ALGORITHM"

# What "auto" stands for where nothing was tuned: by place, up to so many bytes a rank.
DEFAULTS: dict[str, list[tuple[float, str]]] = {
    # In one memory a tile passes the whole program while it is in cache, whoever executes: the
    # fewest instructions win, and that is one. benchmarks/list_allreduce.py compares on the CPU.
    "cpu": [(math.inf, "leader")],
    "gpu": [(math.inf, "leader")],
    # Predicted: up to 64 KiB the events between devices cost more than the bytes, and leader has
    # the fewest; above, sharded spreads the bytes over all links where every pair has one, and ring
    # asks for neighbours only.
    "nvlink": [(64 * 1024, "leader"), (math.inf, "sharded")],
    "pcie": [(64 * 1024, "leader"), (math.inf, "ring")],
}


def choose(place: str, k: int, nbytes: int) -> str:
    """The algorithm that "auto" stands for: the environment's, the tuned table's, or the default.

    Args:
        place: "cpu", one "gpu", several with "nvlink" between all pairs, or others ("pcie").
        k: ranks.
        nbytes: bytes of one rank's tensors.

    Raises:
        ValueError: the environment names no algorithm.

    >>> choose("nvlink", 8, 1 << 20)
    'sharded'
    """
    named = os.environ.get(VARIABLE) or "auto"
    if named not in ("auto", *registry):
        raise ValueError(f"{VARIABLE} is {named!r}; known are auto, {', '.join(names())}")
    if named != "auto":
        return named
    from fastreduce.tune import tuned

    table = tuned()
    return (table and table.best(place, k, nbytes)) or default(place, nbytes)


def default(place: str, nbytes: int) -> str:
    """What "auto" stands for in a place that was not tuned.

    >>> default("pcie", 1 << 20)
    'ring'
    """
    return next(name for most_bytes, name in DEFAULTS[place] if nbytes <= most_bytes)


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
