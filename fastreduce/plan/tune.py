"""Every algorithm timed, on every place that this machine has."""

from __future__ import annotations

import datetime
import math
import statistics
import time
from collections.abc import Collection, Mapping, Sequence

import torch
from torch import Tensor
from tqdm import tqdm

from fastreduce import _C
from fastreduce.algorithms import built_in
from fastreduce.collectives import allreduce
from fastreduce.plan.machine import device, has_nvlink, versions
from fastreduce.plan.table import Table

BUDGET_S = 40.0
KS = (2, 4, 8)
SIZES_BYTES = tuple(1 << exponent for exponent in range(10, 27, 2))

# As a model's gradients are a list, and by-parameter has nothing to share in one tensor.
TENSORS = 8

# One sample lasts at least this long, or the clock and the loop around it would show.
SAMPLE_S = 1e-3
# What small messages leave of their share goes to the large ones, whose samples are few.
MOST_ROUNDS = 25
# Shares grow with the bytes from here on; below, calls are short and shares alike.
CHEAP_BYTES = 4 << 20


def measure(
    places: Collection[str] | None = None,
    *,
    budget_s: float = BUDGET_S,
    progress: bool = True,
    _ks: Sequence[int] = KS,
    _sizes_bytes: Sequence[int] = SIZES_BYTES,
) -> Table:
    """Time the package's algorithms, in turn, and return the medians.

    For 2, 4 and 8 ranks on the CPU and on one GPU, and for one rank a GPU on several; 1 KiB to
    64 MiB a rank of float32, in lists of 8 tensors. Takes about ``budget_s`` and 512 MiB.

    Args:
        places: some of those that this machine has (default: all).
        budget_s: seconds; each algorithm is called at least once at each size, whatever it says.
        progress: show a bar where stderr is a terminal.

    Raises:
        ValueError: this machine has no such place; no time is given.
        RuntimeError: an algorithm's result is wrong.

    >>> table = measure(["cpu"])  # doctest: +SKIP
    >>> table.best("cpu", 4, 1 << 20)  # doctest: +SKIP
    'leader'
    """
    if not 0 < budget_s < math.inf:
        raise ValueError(f"budget_s: found {budget_s}, wanted seconds above zero")
    ranks = _ranks(places, _ks)
    calls = [(place, on, n) for place, on in ranks for n in sorted(_sizes_bytes)]
    weights = [len(on) * max(nbytes, CHEAP_BYTES) for _, on, nbytes in calls]
    end_s = time.perf_counter() + budget_s
    times: dict[str, dict[str, dict[int, dict[int, float]]]] = {}
    buffers: list[Tensor] = []
    for i, (place, on, nbytes) in enumerate(
        tqdm(calls, "tune", disable=None if progress else True)
    ):
        if i % len(_sizes_bytes) == 0:
            _check(place, on)
            buffers.clear()
            buffers += [torch.empty(max(_sizes_bytes) // 4, device=at).zero_() for at in on]
        share_s = (end_s - time.perf_counter()) * weights[i] / sum(weights[i:])
        lists = [list(buffer[: nbytes // 4].chunk(TENSORS)) for buffer in buffers]
        for name, seconds in _medians(lists, share_s).items():
            times.setdefault(place, {}).setdefault(name, {}).setdefault(len(on), {})[nbytes] = (
                seconds
            )
    return Table(device(), *versions(), datetime.date.today().isoformat(), times)


def _ranks(places: Collection[str] | None, ks: Sequence[int]) -> list[tuple[str, list[str]]]:
    """Each place with its ranks' devices, the costliest first."""
    here = {"cpu": [["cpu"] * k for k in sorted(ks, reverse=True)]}
    count = torch.cuda.device_count() if _C.cuda_engines and torch.cuda.is_available() else 0
    if count:
        here["gpu"] = [["cuda:0"] * k for k in sorted(ks, reverse=True)]
    if count > 1:
        here["nvlink" if has_nvlink(count) else "pcie"] = [[f"cuda:{i}" for i in range(count)]]
    for place in places or ():
        if place not in here:
            raise ValueError(f"place: found {place!r}, wanted one of {', '.join(here)}")
    return [
        (place, on) for place in here if places is None or place in places for on in here[place]
    ]


def _check(place: str, on: Sequence[str]) -> None:
    """Values tell rank, tensor and index; their sums are exact in any order."""
    k, index = len(on), torch.arange(1000.0)
    for algorithm in built_in():
        lists = [[index + 7 * r + i for i in range(TENSORS)] for r in range(k)]
        lists = [[x.to(at) for x in tensors] for tensors, at in zip(lists, on, strict=True)]
        allreduce(lists, algorithm=algorithm)
        for rank, tensors in enumerate(lists):
            for i, tensor in enumerate(tensors):
                if not torch.equal(tensor.cpu(), k * (index + i) + 7 * sum(range(k))):
                    raise RuntimeError(
                        f"{algorithm} on {place} with {k} ranks: tensor {i} of rank {rank} is not "
                        "the sum; nothing is measured, please report it"
                    )


def _medians(lists: list[list[Tensor]], share_s: float) -> Mapping[str, float]:
    end_s = time.perf_counter() + share_s
    gpus = {tensors[0].device for tensors in lists} - {torch.device("cpu")}

    def seconds(algorithm: str, repeats: int) -> float:
        begin_s = time.perf_counter()
        for _ in range(repeats):
            allreduce(lists, algorithm=algorithm)
        for gpu in gpus:
            torch.cuda.synchronize(gpu)
        return (time.perf_counter() - begin_s) / repeats

    first_s = {name: seconds(name, 1) for name in built_in()}
    repeats = {name: max(1, round(SAMPLE_S / first_s[name])) for name in first_s}
    samples: dict[str, list[float]] = {name: [] for name in first_s}
    for _ in range(MOST_ROUNDS):
        if time.perf_counter() >= end_s:
            break
        for name in samples:
            samples[name].append(seconds(name, repeats[name]))
    return {name: statistics.median(samples[name] or [first_s[name]]) for name in samples}
