"""What "auto" stands for where nothing was measured."""

from __future__ import annotations

import math

# By place: the most bytes per rank for which each algorithm is the default.
DEFAULTS: dict[str, list[tuple[float, str]]] = {
    # In one memory each worker takes a tile through the whole program while it is in cache, so the
    # program with the fewest instructions wins: leader has one. Measured on a CPU
    # (benchmarks/results/auto.json), and on one H100, where leader took at most 1.1 times as long
    # as sharded and ring, in a graph (2026-11-23, benchmarks/results/h100/report.json).
    "cpu": [(math.inf, "leader")],
    "gpu": [(math.inf, "leader")],
    # Predicted: up to 64 KiB the events between devices cost more than the bytes, and leader needs
    # the fewest events. Above, sharded spreads the bytes over all links, if every pair of GPUs has
    # one; ring needs only links between neighbours.
    "nvlink": [(64 * 1024, "leader"), (math.inf, "sharded")],
    # Predicted: below, the second step that sharded takes costs more than that every rank reduces
    # everything.
    "processes": [(32 * 1024, "pulled-leader"), (math.inf, "sharded")],
    "pcie": [(64 * 1024, "leader"), (math.inf, "ring")],
}

# The places of several GPUs.
BETWEEN_GPUS = ("nvlink", "pcie")


def default(place: str, nbytes: int) -> str:
    """What "auto" stands for in a place that was not tuned.

    >>> default("pcie", 1 << 20)
    'ring'
    """
    return next(name for most_bytes, name in DEFAULTS[place] if nbytes <= most_bytes)
