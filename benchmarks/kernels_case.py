"""One case of benchmarks/kernels.py: all contenders over the same buffers, and who fell out."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from competitors import Contender, ours, theirs
from measure import Row, alternate
from rotation import CALLS_A_SET, GRAPHS_KEPT, Buffers, Rotation

from fastreduce import _C
from fastreduce.algorithms import collectives

# On one GPU the program "host" sends 2 k n bytes over PCIe, which is some 60 times slower than the
# GPU's memory: larger sizes show nothing new, and would take most of the benchmark's time.
MOST_HOST_BYTES = 16 << 20


@dataclass(frozen=True)
class Case:
    """Tensors of these shapes on every rank; engines that use the same devices."""

    shapes: list[tuple[int, ...]]
    dtype: torch.dtype
    k: int
    op: str
    engines: list[str]

    @property
    def count_elems(self) -> int:
        return sum(math.prod(shape) for shape in self.shapes)

    @property
    def size_bytes(self) -> int:
        return self.count_elems * self.dtype.itemsize

    def columns(self) -> Row:
        return {
            "size_bytes": self.size_bytes,
            "count_elems": self.count_elems,
            "tensors": len(self.shapes),
            "type": str(self.dtype).removeprefix("torch."),
            "redop": self.op,
            "k": self.k,
        }

    def failure(self, who: Contender | None, error: Exception) -> Row:
        """Of a contender, or of nobody in particular."""
        first_line = next(iter(str(error).splitlines()), "")
        return {
            **self.columns(),
            "engine": who.engine if who else None,
            "algorithm": who.algorithm if who else None,
            "error": f"{type(error).__name__}: {first_line}",
        }


def has_gpu() -> bool:
    return torch.cuda.is_available() and _C.cuda_engines


def devices_of(engine: str) -> list[torch.device]:
    if not has_gpu():
        return [torch.device("cpu")]
    count = torch.cuda.device_count() if engine == "gpus" else 1
    return [torch.device("cuda", i) for i in range(count)]


def cache_bytes() -> int:
    """Of the L2; unknown on the CPU, where one set of buffers is used as often as it takes."""
    return torch.cuda.get_device_properties(0).L2_cache_size if has_gpu() else 0


def fits(case: Case) -> bool:
    if not has_gpu():
        return True
    torch.cuda.empty_cache()
    needed = Buffers.needed_bytes(case.size_bytes, case.k, case.dtype, cache_bytes())
    free, _ = torch.cuda.mem_get_info()
    if needed > free:
        what = f"{case.size_bytes} B a rank, k = {case.k}"
        print(f"# {what}: left out, needs {needed / 1e9:.0f} GB of GPU memory", flush=True)
    return needed <= free


def contenders_of(case: Case, algorithms: list[str]) -> list[Contender]:
    several = len(devices_of(case.engines[0])) > 1
    own = [
        ours(x, name, case.op) for x in case.engines for name in algorithms if serves(case, x, name)
    ]
    others = theirs(case.dtype, case.op, case.k, has_gpu())
    return own + [x for x in others if x.algorithm == "loop" or not several]


def serves(case: Case, engine: str, algorithm: str) -> bool:
    if algorithm == "auto":
        return True
    if (engine, algorithm) == ("events", "host") and case.size_bytes > MOST_HOST_BYTES:
        return False
    try:
        collectives.program("allreduce", case.k, algorithm=algorithm)
    except ValueError:
        return False  # halving-doubling, say, wants a power of two
    return True


def most_sets(contenders: Iterable[Contender]) -> int:
    """So many sets that the events engine keeps every contender's graph of every set."""
    return max(1, GRAPHS_KEPT // max(1, sum(x.engine in ("events", "gpus") for x in contenders)))


def limit(buffers: Buffers) -> Rotation:
    """What no allreduce over these buffers can beat once they are larger than the cache."""
    first, *others = buffers.devices
    sets = list(buffers.pools[0])
    if not buffers.on_gpu:
        calls = [lambda x=x: x.mul_(1) for x in sets]
    elif not others:
        target = torch.empty_like(buffers.pools[0])
        calls = [lambda x=x, y=y: y.copy_(x) for x, y in zip(sets, target, strict=True)]
    else:
        elems = max(1, 2 * (buffers.k - 1) * buffers.count_elems // buffers.k)
        source = torch.empty(elems, dtype=buffers.dtype, device=first)
        target = torch.empty_like(source, device=others[0])
        calls = [lambda: target.copy_(source)]
    return Rotation(buffers, Contender("limit", "copy", lambda ranks: ranks), calls)


class Contest:
    """Who takes part, on which buffers, and how many wrong elements each has left there."""

    def __init__(self, case: Case, args: argparse.Namespace, failures: list[Row]) -> None:
        self.case, self.args, self.failures = case, args, failures
        contenders = contenders_of(case, args.algorithm)
        devices, sets = devices_of(case.engines[0]), most_sets(contenders)
        self.buffers = Buffers(case.shapes, case.dtype, case.k, devices, cache_bytes(), sets)
        self.wrong: dict[str, int] = {}
        self.rotations = self.those_that_can(self._prepare, contenders)
        self.contenders = [x for x in contenders if x.name in self.rotations]
        self.copy = limit(self.buffers)

    def those_that_can(
        self, step: Callable[[Contender], Rotation], contenders: Iterable[Contender]
    ) -> dict[str, Rotation]:
        """By name. One that raises spoils it for no other."""
        able = {}
        for contender in contenders:
            try:
                able[contender.name] = step(contender)
            except Exception as error:
                self.failures.append(self.case.failure(contender, error))
        return able

    def _prepare(self, contender: Contender) -> Rotation:
        rotation = Rotation.of(self.buffers, contender)
        self.wrong[contender.name] = rotation.count_wrong(self.case.op)
        return rotation

    def _capture(self, contender: Contender) -> Rotation:
        replay = self.rotations[contender.name].captured()
        self.wrong[contender.name] += self.buffers.count_wrong(self.case.op, replay.run_all)
        return replay

    def seconds_called(self) -> dict[str, float]:
        return self._seconds({"limit": self.copy, **self.rotations})

    def seconds_captured(self) -> dict[str, float]:
        if not self.buffers.on_gpu or len(self.buffers.devices) > 1:
            return {}
        self.copy.run_all()
        replays = self.those_that_can(self._capture, self.contenders)
        turns = self._seconds({"limit": self.copy.captured(), **replays})
        return {name: seconds / len(self.buffers.sets) for name, seconds in turns.items()}

    def _seconds(self, rotations: dict[str, Rotation]) -> dict[str, float]:
        """Of one call; warmed up in turns over all sets: the engine has a graph for each."""
        calls = max(len(x.calls) for x in rotations.values())
        warmup, most = self.args.w * calls, CALLS_A_SET * calls
        return alternate(rotations, self.args.n, warmup, Rotation.seconds, most)

    def host_seconds(self) -> dict[str, float]:
        if not self.buffers.on_gpu:
            return {}
        return {name: x.host_seconds(self.args.n) for name, x in self.rotations.items()}


def measure(case: Case, args: argparse.Namespace, failures: list[Row]) -> list[Row]:
    """A row for each contender that runs; who does not is named in ``failures``."""
    contest = Contest(case, args, failures)
    called, host_s = contest.seconds_called(), contest.host_seconds()
    captured = contest.seconds_captured()
    return [
        {
            **case.columns(),
            "working_set_bytes": contest.buffers.working_set_bytes,
            "engine": x.engine,
            "algorithm": x.algorithm,
            "eager": speed(case, called, x.name),
            "captured": speed(case, captured, x.name),
            "host_s": host_s.get(x.name),
            "wrong_elems": contest.wrong[x.name],
        }
        for x in contest.contenders
    ]


def speed(case: Case, seconds: dict[str, float], name: str) -> dict[str, Any] | None:
    if name not in seconds:
        return None
    size, k, time_s = case.size_bytes, case.k, seconds[name]
    loop_s = seconds.get("torch loop")
    return {
        "time_s": time_s,
        "algbw_gb_per_s": size / time_s / 1e9,
        "busbw_gb_per_s": size / time_s / 1e9 * 2 * (k - 1) / k,
        "moved_gb_per_s": 2 * k * size / time_s / 1e9,
        "of_limit": seconds["limit"] / time_s,
        "over_loop": loop_s / time_s if loop_s else None,
    }
