"""The one decision that "auto" stands for."""

from __future__ import annotations

import os

from fastreduce import _C
from fastreduce.algorithms import names, registry
from fastreduce.algorithms.registration import FILE
from fastreduce.names import listed
from fastreduce.plan.defaults import default
from fastreduce.plan.table_files import tuned

# Overrides "auto", as NCCL_ALGO does in NCCL, but not an algorithm that a call names.
VARIABLE = "FASTREDUCE_ALGORITHM"


def choose(
    place: str, k: int, nbytes: int, collective: str = "allreduce", variable: str | None = None
) -> str:
    """The algorithm that "auto" stands for: the environment's, the tuned table's, or the default.

    Collectives other than allreduce have one algorithm each for a place, and nothing changes it.

    Args:
        place: "cpu", "gpu" (one), "nvlink" (several, with NVLink between all pairs), "pcie"
            (several others), or "processes" (each rank a process of its own).
        k: ranks.
        nbytes: bytes of one rank's tensors; sizes up to the next power of two are treated alike.
        variable: the value of ``FASTREDUCE_ALGORITHM``; None: what it is now.

    Raises:
        ValueError: the environment names an unknown algorithm.

    >>> choose("nvlink", 8, 1 << 20), choose("nvlink", 8, 1 << 20, "broadcast")
    ('sharded', 'direct')
    """
    if collective != "allreduce":
        return "pull" if place == "processes" else "direct"
    named = (os.environ.get(VARIABLE) if variable is None else variable) or "auto"
    if named not in ("auto", *registry) and not named.startswith(FILE):
        known = listed(["auto", *names()], named)
        raise ValueError(f"{VARIABLE} is {named!r}; known are {known}")
    if named != "auto":
        return named
    table, rounded = tuned(), _C.size_class(nbytes)
    return (table and table.best(place, k, rounded)) or default(place, rounded)
