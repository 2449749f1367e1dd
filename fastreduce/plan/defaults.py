"""What "auto" stands for where nothing was measured."""

from __future__ import annotations

import math

# By place, up to so many bytes per rank.
DEFAULTS: dict[str, list[tuple[float, str]]] = {
    # In one memory a tile passes the whole program while it is in cache, whoever executes: the
    # fewest instructions win, and that is one. benchmarks/allreduce.py compares them on the CPU.
    "cpu": [(math.inf, "leader")],
    "gpu": [(math.inf, "leader")],
    # Predicted: up to 64 KiB the events between devices cost more than the bytes, and leader has
    # the fewest; above, sharded spreads the bytes over all links where every pair has one, and ring
    # asks for neighbours only.
    "nvlink": [(64 * 1024, "leader"), (math.inf, "sharded")],
    "pcie": [(64 * 1024, "leader"), (math.inf, "ring")],
}


def default(place: str, nbytes: int) -> str:
    """What "auto" stands for in a place that was not tuned.

    >>> default("pcie", 1 << 20)
    'ring'
    """
    return next(name for most_bytes, name in DEFAULTS[place] if nbytes <= most_bytes)
