"""Times every algorithm in every place that this machine has."""

from __future__ import annotations

import datetime
import math
import statistics
from collections.abc import Callable, Collection, Mapping, Sequence
from time import perf_counter
from typing import NamedTuple

import torch
from torch import Tensor

from fastreduce import _C
from fastreduce.algorithms import built_in
from fastreduce.arguments import check_flags
from fastreduce.collectives import allreduce
from fastreduce.names import listed
from fastreduce.plan.machine import device, versions
from fastreduce.plan.noise import Entry, doubtful
from fastreduce.plan.table import Table, Times

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
# An error names so many entries and counts the others.
MOST_NAMED = 3


class _Call(NamedTuple):
    """Algorithms that are timed in turn, on one list of tensors per device of ``on``."""

    place: str
    on: tuple[str, ...]
    nbytes: int  # per rank
    algorithms: tuple[str, ...]

    def entry(self, algorithm: str) -> Entry:
        return Entry(self.place, algorithm, len(self.on), self.nbytes)


class NoisyMeasurement(RuntimeError):
    """Other work disturbed the measurement, also when it was repeated.

    Args:
        table: what was measured all the same.
        entries: the entries that cannot be trusted, and why.
    """

    def __init__(self, table: Table, entries: Mapping[Entry, str]) -> None:
        named = "; ".join(f"{x}: {entries[x]}" for x in list(entries)[:MOST_NAMED])
        more = f"; and {len(entries) - MOST_NAMED} more" if len(entries) > MOST_NAMED else ""
        super().__init__(
            f"{len(entries)} of the measured times cannot be trusted ({named}{more}); the "
            "machine is busy: close other programs and tune again"
        )
        self.table = table
        self.entries = entries


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
    1 KiB to 64 MiB of float32 per rank, in lists of 8 tensors. Needs 512 MiB of memory. Takes three
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
    begin_s = perf_counter()
    samples = _sampled(calls, begin_s + FIRST_PASS * budget_s, "tune", progress)
    while (noisy := doubtful(samples)) and perf_counter() < begin_s + budget_s:
        again = [
            call._replace(algorithms=disturbed)
            for call in calls
            if (disturbed := tuple(name for name in names if call.entry(name) in noisy))
        ]
        second = _sampled(again, begin_s + budget_s, f"again, {len(noisy)} noisy", progress)
        # Other work only ever adds time: the faster of two measurements was disturbed less.
        samples |= {x: min(samples[x], fresh, key=statistics.median) for x, fresh in second.items()}
    table = Table(device(), *versions(), datetime.date.today().isoformat(), _times(samples))
    if noisy:
        raise NoisyMeasurement(table, noisy)
    return table


def _times(samples: Mapping[Entry, Sequence[float]]) -> Times:
    times: dict[str, dict[str, dict[int, dict[int, float]]]] = {}
    for (place, name, k, nbytes), measured in samples.items():
        by_k = times.setdefault(place, {}).setdefault(name, {})
        by_k.setdefault(k, {})[nbytes] = statistics.median(measured)
    return times


def _ranks(places: Collection[str] | None, ks: Sequence[int]) -> list[tuple[str, list[str]]]:
    """Each place with its ranks' devices, the costliest first."""
    here = {"cpu": [["cpu"] * k for k in sorted(ks, reverse=True)]}
    count = torch.cuda.device_count() if _C.cuda_engines and torch.cuda.is_available() else 0
    if count:
        here["gpu"] = [["cuda:0"] * k for k in sorted(ks, reverse=True)]
    if count > 1:
        gpus = [torch.device("cuda", i) for i in range(count)]
        here[_C.place(gpus)] = [[str(gpu) for gpu in gpus]]
    for place in places or ():
        if place not in here:
            raise ValueError(f"place: found {place!r}, wanted one of {listed(here, place)}")
    return [
        (place, on) for place in here if places is None or place in places for on in here[place]
    ]


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
) -> dict[Entry, list[float]]:
    """Samples of the seconds per call. Calls with more bytes get more of the time that is left."""
    from tqdm import tqdm

    weights = [len(x.on) * max(x.nbytes, CHEAP_BYTES) * len(x.algorithms) for x in calls]
    most_bytes = max(call.nbytes for call in calls)
    samples: dict[Entry, list[float]] = {}
    on: tuple[str, ...] = ()
    buffers: list[Tensor] = []
    for i, call in enumerate(tqdm(calls, title, disable=None if progress else True)):
        if on != call.on:
            on = call.on
            buffers.clear()  # freed first: memory may not hold two sets
            buffers += [torch.empty(most_bytes // 4, device=at).zero_() for at in on]
        share_s = (end_s - perf_counter()) * weights[i] / sum(weights[i:])
        lists = [list(buffer[: call.nbytes // 4].chunk(TENSORS)) for buffer in buffers]
        found = _in_turn(call.algorithms, _timer(lists), perf_counter() + share_s)
        samples |= {call.entry(name): seconds for name, seconds in found.items()}
    return samples


def _timer(lists: list[list[Tensor]]) -> Callable[[str, int], float]:
    gpus = {tensors[0].device for tensors in lists} - {torch.device("cpu")}

    def seconds_per_call(algorithm: str, repeats: int) -> float:
        begin_s = perf_counter()
        for _ in range(repeats):
            allreduce(lists, algorithm=algorithm)
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
