"""What a table of measured times belongs to."""

from __future__ import annotations

import functools
import platform
import re
from collections import Counter
from pathlib import Path

import torch

import fastreduce
from fastreduce import _C


def device() -> str:
    """The CPU's model, torch's threads, and the GPUs if this build has engines for them.

    >>> device().endswith(" threads") or " x " in device()
    True
    """
    gpus = [f"{count} x {name}" for name, count in Counter(_gpus()).items()]
    return ", ".join([cpu(), f"{torch.get_num_threads()} threads", *gpus])


def versions() -> tuple[str, str]:
    """The versions of fastreduce and of torch; of torch only major and minor.

    >>> versions()[0] == fastreduce.__version__
    True
    """
    return fastreduce.__version__, ".".join(torch.__version__.split(".")[:2])


@functools.cache
def cpu() -> str:
    """The CPU's model as Linux names it, with its family and model numbers.

    >>> isinstance(cpu(), str)
    True
    """
    info = Path("/proc/cpuinfo")
    first = info.read_text().split("\n\n")[0] if info.exists() else ""
    fields = dict(re.findall(r"^([^:\n]*?)\s*:[ \t]*(.*)$", first, re.MULTILINE))
    # Virtual machines may hide the model's name, but not its number.
    keys = ("model name", "cpu family", "model")
    if all(key in fields for key in keys):
        return "{} (family {}, model {})".format(*(fields[key] for key in keys))
    return platform.processor() or platform.machine()


@functools.cache
def _gpus() -> tuple[str, ...]:
    """GPU names from the driver: torch would start CUDA in a process that may never use it."""
    if not _C.cuda_engines:
        return ()
    try:
        import pynvml
    except ImportError:
        return ()
    try:
        pynvml.nvmlInit()
        try:
            handles = map(pynvml.nvmlDeviceGetHandleByIndex, range(pynvml.nvmlDeviceGetCount()))
            return tuple(str(pynvml.nvmlDeviceGetName(handle)) for handle in handles)
        finally:
            pynvml.nvmlShutdown()
    except pynvml.NVMLError:
        return ()
