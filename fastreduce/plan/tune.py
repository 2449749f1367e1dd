"""Times every algorithm in every place that this machine has."""

from __future__ import annotations

import datetime
import math
import statistics
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from time import perf_counter
from typing import NamedTuple

import torch
from torch import Tensor

from fastreduce import _C
from fastreduce.algorithms import built_in
from fastreduce.arguments import check_flags
from fastreduce.collectives import allreduce
from fastreduce.devices import usable_devices
from fastreduce.files import stderr_is_terminal
from fastreduce.names import listed
from fastreduce.plan import copies
from fastreduce.plan.machine import device, versions
from fastreduce.plan.noise import NoisyMeasurement, TableEntry, doubtful
from fastreduce.plan.table import Table, Times

# All of these are choices, not measurements.
BUDGET_S = 40.0
# Share of the budget; the rest is for measuring again what was disturbed.
FIRST_PASS = 0.75
KS = (2, 4, 8)
SIZES_BYTES = tuple(1 << exponent for exponent in range(10, 27, 2))

# Several, because a model's gradients are a list, and by-parameter cannot split a single tensor.
TENSORS = 8

# A sample lasts about this long, so that the clock and the loop around it do not count.
SAMPLE_S = 1e-3
# Fewer do not show whether they agree.
FEWEST_SAMPLES = 3
# Small messages stop here, so that their time left goes to large ones, which get few samples.
MOST_SAMPLES = 25
# Above this size a call's share of the time grows with its bytes; below, all shares are equal.
CHEAP_BYTES = 4 << 20


class _Call(NamedTuple):
    """Algorithms, or ways to copy, that are timed in turn, on tensors on each device of ``on``."""

    place: str
    on: tuple[str, ...]
    nbytes: int  # per rank
    names: tuple[str, ...]
    tensors: int = TENSORS

    def entry(self, name: str) -> TableEntry:
        return TableEntry(self.place, name, len(self.on), self.nbytes)


def measure(
    places: Collection[str] | None = None,
    *,
    budget_s: float = BUDGET_S,
    progress: bool = True,
    _ks: Sequence[int] = KS,
    _sizes_bytes: Sequence[int] = SIZES_BYTES,
) -> Table:
    """Time the package's algorithms, in turn, and return the medians.

    Measures 2, 4 and 8 ranks on the CPU and on one GPU, and one rank per GPU on several GPUs, with
    1 KiB to 64 MiB of float32 per rank, in lists of 8 tensors; on several GPUs also from which size
    on a copy between two of them is faster by the copy engine. Needs 512 MiB of memory. Takes three
    quarters of ``budget_s``; the rest is for measuring again what other work on the machine has
    disturbed (`fastreduce.plan.noise`).

    Args:
        places: some of the places that this machine has (default: all).
        budget_s: seconds; exceeded if each algorithm could not be called a few times at each size.
        progress: show a bar if stderr is a terminal.

    Raises:
        ValueError: this machine has no such place, or ``budget_s`` is not above zero.
        NoisyMeasurement: some times cannot be trusted, also after they were measured again.
        RuntimeError: an algorithm's result is wrong.

    >>> table = measure(["cpu"])  # doctest: +SKIP
    >>> table.best("cpu", 4, 1 << 20)  # doctest: +SKIP
    'leader'
    """
    check_flags("measure", progress=progress)
    if not 0 < budget_s < math.inf:
        raise ValueError(f"budget_s: found {budget_s}, wanted seconds above zero")
    ranks = _ranks(places, _ks)
    for place, on in ranks:
        _check(place, on)
    names = tuple(built_in())
    calls = [_Call(place, tuple(on), n, names) for place, on in ranks for n in sorted(_sizes_bytes)]
    with copies.as_before():
        samples = _measured([*calls, *_copies(places)], budget_s, progress)
    times_s, copies_s = (
        _times({x: samples[x] for x in samples if (x.algorithm in copies.WAYS) == wanted})
        for wanted in (False, True)
    )
    about = (device(), *versions(), datetime.date.today().isoformat())
    table = Table(*about, times_s, _copy_engine_bytes(copies_s))
    if noisy := doubtful(samples):
        raise NoisyMeasurement(table, noisy)
    return table


def _measured(
    calls: Sequence[_Call], budget_s: float, progress: bool
) -> dict[TableEntry, list[float]]:
    """Samples of all calls; while there is time, those that were disturbed are taken again."""
    begin_s = perf_counter()
    samples = _sampled(calls, begin_s + FIRST_PASS * budget_s, "tune", progress)
    while (noisy := doubtful(samples)) and perf_counter() < begin_s + budget_s:
        again = [
            call._replace(names=disturbed)
            for call in calls
            if (disturbed := tuple(name for name in call.names if call.entry(name) in noisy))
        ]
        second = _sampled(again, begin_s + budget_s, f"again, {len(noisy)} noisy", progress)
        # Other work only ever adds time: the faster of two measurements was disturbed less.
        samples |= {x: min(samples[x], fresh, key=statistics.median) for x, fresh in second.items()}
    return samples


def _copies(places: Collection[str] | None) -> list[_Call]:
    """Of one tensor, between two GPUs of each place."""
    return [
        _Call(place, on, nbytes, tuple(copies.WAYS), tensors=1)
        for place, on in copies.pairs(_gpus()).items()
        if places is None or place in places
        for nbytes in copies.SIZES_BYTES
    ]


def _copy_engine_bytes(times_s: Times) -> dict[str, int | None]:
    return {
        place: copies.copy_engine_bytes({way: by_k[2] for way, by_k in by_way.items()})
        for place, by_way in times_s.items()
    }


def _times(samples: Mapping[TableEntry, Sequence[float]]) -> Times:
    times: dict[str, dict[str, dict[int, dict[int, float]]]] = {}
    for (place, name, k, nbytes), measured in samples.items():
        by_k = times.setdefault(place, {}).setdefault(name, {})
        by_k.setdefault(k, {})[nbytes] = statistics.median(measured)
    return times


def _ranks(places: Collection[str] | None, ks: Sequence[int]) -> list[tuple[str, list[str]]]:
    """Each place with its ranks' devices, the costliest first."""
    here = {"cpu": [["cpu"] * k for k in sorted(ks, reverse=True)]}
    gpus = _gpus()
    if gpus:
        here["gpu"] = [["cuda:0"] * k for k in sorted(ks, reverse=True)]
    if len(gpus) > 1:
        here[_C.place(gpus)] = [[str(gpu) for gpu in gpus]]
    for place in places or ():
        if place not in here:
            raise ValueError(f"place: found {place!r}, wanted one of {listed(here, place)}")
    return [
        (place, on) for place in here if places is None or place in places for on in here[place]
    ]


def _gpus() -> list[torch.device]:
    return [device for device in usable_devices() if device.type == "cuda"]


def _check(place: str, on: Sequence[str]) -> None:
    """Check the sums. Each value shows its rank, tensor and index; sums are exact in any order."""
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


def _sampled(
    calls: Sequence[_Call], end_s: float, title: str, progress: bool
) -> dict[TableEntry, list[float]]:
    """Samples of the seconds per call. Calls with more bytes get more of the time that is left."""
    from tqdm import tqdm

    weights = [len(x.on) * max(x.nbytes, CHEAP_BYTES) * len(x.names) for x in calls]
    most_bytes = max(call.nbytes for call in calls)
    samples: dict[TableEntry, list[float]] = {}
    on: tuple[str, ...] = ()
    buffers: list[Tensor] = []
    for i, call in enumerate(tqdm(calls, title, disable=not (progress and stderr_is_terminal()))):
        if on != call.on:
            on = call.on
            buffers.clear()  # freed first: memory may not hold two sets
            buffers += [torch.empty(most_bytes // 4, device=at).zero_() for at in on]
        share_s = (end_s - perf_counter()) * weights[i] / sum(weights[i:])
        lists = [list(buffer[: call.nbytes // 4].chunk(call.tensors)) for buffer in buffers]
        found = _in_turn(call.names, _timer(lists), perf_counter() + share_s)
        samples |= {call.entry(name): seconds for name, seconds in found.items()}
    return samples


def _timer(lists: list[list[Tensor]]) -> Callable[[str, int], float]:
    gpus = {tensors[0].device for tensors in lists} - {torch.device("cpu")}

    def seconds_per_call(name: str, repeats: int) -> float:
        is_copy = name in copies.WAYS
        call = partial(copies.copy, name) if is_copy else partial(allreduce, algorithm=name)
        begin_s = perf_counter()
        for _ in range(repeats):
            call(lists)
        for gpu in gpus:
            torch.cuda.synchronize(gpu)
        return (perf_counter() - begin_s) / repeats

    return seconds_per_call


def _in_turn(
    names: Sequence[str], timer: Callable[[str, int], float], end_s: float
) -> dict[str, list[float]]:
    """In rounds, so that other work which lasts a while disturbs all algorithms alike."""
    samples: dict[str, list[float]] = {name: [] for name in names}
    last_s = {name: timer(name, 1) for name in names}  # warms up, and is not a sample
    for count in range(MOST_SAMPLES):
        if count >= FEWEST_SAMPLES and perf_counter() >= end_s:
            break
        for name in names:
            last_s[name] = timer(name, max(1, round(SAMPLE_S / last_s[name])))
            samples[name].append(last_s[name])
    return samples
