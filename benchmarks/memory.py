"""How much memory does something need at its peak, more than before?"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path


def peak_bytes(call: Callable[[], object]) -> int:
    """``call`` has a process of its own, so it must be one that pickle can send there."""
    with ProcessPoolExecutor(1, get_context("spawn")) as process:
        return process.submit(_measured, call).result()


def _measured(call: Callable[[], object]) -> int:
    before = _most_bytes()
    call()
    return _most_bytes() - before


def _most_bytes() -> int:
    """The most memory that this process has had. (resource.getrusage counts its parent's too.)"""
    (line,) = (x for x in Path("/proc/self/status").read_text().splitlines() if "VmHWM" in x)
    return int(line.split()[1]) * 1024
