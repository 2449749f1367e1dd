"""From which size on a copy between two GPUs is left to the copy engine, as measured."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from fastreduce import _C
from fastreduce.collectives import broadcast
from fastreduce.plan.table import NEVER_BYTES, TIE

# Predicted: smaller copies end before the copy engine has begun.
SIZES_BYTES = tuple(1 << exponent for exponent in range(18, 27))

# What copies, and from which size on the copy engine must then be taken.
WAYS = {"copy by a kernel": NEVER_BYTES, "copy by the copy engine": 1}
KERNEL, COPY_ENGINE = WAYS


def pairs(gpus: Sequence[torch.device]) -> dict[str, tuple[str, str]]:
    """Two GPUs for each place that two of these are."""
    found: dict[str, tuple[str, str]] = {}
    for one, other in itertools.combinations(gpus, 2):
        found.setdefault(_C.place([one, other]), (str(one), str(other)))
    return found


def copy(way: str, lists: Sequence[Sequence[Tensor]]) -> None:
    """Copy the first GPU's tensor to the second, and wait, as whatever comes next in a program."""
    _C.set_copy_engine_bytes(nvlink=WAYS[way], pcie=WAYS[way])
    broadcast(lists)
    for device in {tensors[0].device for tensors in lists} - {torch.device("cpu")}:
        torch.cuda.synchronize(device)


@contextmanager
def as_before() -> Iterator[None]:
    """Calls afterwards copy as they did before."""
    nvlink, pcie = _C.copy_engine_bytes()
    try:
        yield
    finally:
        _C.set_copy_engine_bytes(nvlink, pcie)


def copy_engine_bytes(times_s: Mapping[str, Mapping[int, float]]) -> int | None:
    """From which size on the copy engine is to copy; None for never.

    A size loses what its slowest choice loses: how many times as long a measured copy takes at
    most as it would by the faster way. All that lose at most 5 % more than the best are as good,
    and the one nearest to the default is taken, as `Table.best` prefers the default.

    Args:
        times_s: seconds of a copy by way and size, over the same sizes.

    >>> kernel = {1 << 20: 10e-6, 4 << 20: 20e-6, 16 << 20: 60e-6}
    >>> engine = {1 << 20: 15e-6, 4 << 20: 18e-6, 16 << 20: 50e-6}
    >>> copy_engine_bytes({KERNEL: kernel, COPY_ENGINE: engine}) >> 20
    4
    """
    usual, sizes = _C.default_copy_engine_bytes, sorted(times_s[KERNEL])

    def loss(from_bytes: int) -> float:
        return max(
            times_s[COPY_ENGINE if nbytes >= from_bytes else KERNEL][nbytes]
            / min(by_size[nbytes] for by_size in times_s.values())
            for nbytes in sizes
        )

    losses = {from_bytes: loss(from_bytes) for from_bytes in (*sizes, usual, NEVER_BYTES)}
    as_good = [x for x in losses if losses[x] <= TIE * min(losses.values())]
    chosen = min(as_good, key=lambda from_bytes: abs(math.log2(from_bytes / usual)))
    return None if chosen == NEVER_BYTES else chosen
