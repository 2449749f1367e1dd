"""Settings of torch for a ``with`` block, restored at its end."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

# Shards of up to so many rows are computed on one thread. Measured with 8 rows on 2 cores, CPU not
# noted, 2026-11-21: a step takes 9 ms on one thread and 6 ms on two; but while other processes ran,
# an epoch on two threads took 14 to 81 s instead of 4 s.
ONE_THREAD_ROWS = 16


@contextmanager
def threads_for(shard_rows: float, devices: Sequence[torch.device]) -> Iterator[None]:
    """Compute small shards on one thread, so that other processes do not slow them down.

    Threads that share a small operation wait for each other by spinning. If another process uses
    one of their cores, most of the time is spent waiting.
    """
    before = torch.get_num_threads()
    if shard_rows <= ONE_THREAD_ROWS and all(device.type == "cpu" for device in devices):
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def deterministic_cudnn() -> Iterator[None]:
    """Keep cuDNN to algorithms that give the same bits in every run."""
    before = torch.backends.cudnn.deterministic
    torch.backends.cudnn.deterministic = True
    try:
        yield
    finally:
        torch.backends.cudnn.deterministic = before
