"""Making a group: who is on which machine, and the objects behind it."""

from __future__ import annotations

import os
import socket
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch.distributed as dist

from fastreduce import _C

NAME = "fastreduce"


def register() -> None:
    """Make the backend known to torch.distributed; again has no effect."""
    if NAME.upper() not in dist.Backend._plugins:
        dist.Backend.register_backend(NAME, _create, extended_api=True, devices=["cpu"])


def _create(options: Any, _: Any) -> Any:
    store, rank, size = options.store, options.group_rank, options.group_size
    timeout = options.timeout
    rest = dist.ProcessGroupGloo(dist.PrefixStore("rest", store), rank, size, timeout)
    names = [str(x) for x in options.global_ranks_in_group] or [str(x) for x in range(size)]

    def exchange(mine: str) -> list[str]:
        store.set(f"invitation of {rank}", mine)
        return [store.get(f"invitation of {peer}").decode() for peer in range(size)]

    return _C.process_backend(rank, names, timeout, 64 << 20, exchange, rest)
