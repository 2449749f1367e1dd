"""Making a group: who is on which machine, and the objects behind it."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from fastreduce import _C

NAME = "fastreduce"

# Of one group, in all its processes together: what is staged on the way between two tensors.
SHARED_BYTES = 64 << 20


def register() -> None:
    """Make the backend known to torch.distributed; again has no effect."""
    if NAME.upper() not in dist.Backend._plugins:
        dist.Backend.register_backend(NAME, _create, extended_api=True, devices=["cpu"])


def machine() -> str:
    """The same for two processes exactly if one can open the other's memory by its number."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{socket.gethostname()} {boot} {os.readlink('/proc/self/ns/pid')}"


def _create(options: Any, _: Any) -> Any:
    store, rank, size = options.store, options.group_rank, options.group_size
    names = [str(x) for x in options.global_ranks_in_group] or [str(x) for x in range(size)]
    # DistributedDataParallel asks a backend for its buckets' memory only where this is "0".
    os.environ.setdefault("DDP_DISABLE_COMM_MEM", "0")

    def exchange(mine: str) -> list[str]:
        store.set(f"invitation of {rank}", f"{machine()}\n{mine}")
        found = [store.get(f"invitation of {peer}").decode() for peer in range(size)]
        return [text.partition("\n")[2] for text in found]

    rest = dist.ProcessGroupGloo(dist.PrefixStore("rest", store), rank, size, options.timeout)
    return _C.process_backend(rank, names, options.timeout, SHARED_BYTES, exchange, rest)


def empty(*sizes: int, dtype: torch.dtype | None = None) -> torch.Tensor:
    """An uninitialised CPU tensor that peers can reach: collectives use it where it lies."""
    return _C.shared_empty(sizes, dtype or torch.get_default_dtype())
