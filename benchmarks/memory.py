"""How much memory does something need at its peak, more than before?"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import torch


def peak_bytes(call: Callable[[], object]) -> int:
    """``call`` has a process of its own, so it must be one that pickle can send there."""
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(_measured, (call, f"{folder}/found"))
        return int(Path(folder, "found").read_text())


def _measured(_: int, call: Callable[[], object], path: str) -> None:
    before = _most_bytes()
    call()
    Path(path).write_text(str(_most_bytes() - before))


def _most_bytes() -> int:
    """The most memory that this process has had. (resource.getrusage counts its parent's too.)"""
    (line,) = (x for x in Path("/proc/self/status").read_text().splitlines() if "VmHWM" in x)
    return int(line.split()[1]) * 1024
