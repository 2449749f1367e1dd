"""One case of benchmarks/allreduce.py: all contenders on the same buffers, and those that fail."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from buffers import GRAPHS_KEPT, Buffers, cache_bytes, has_gpu
from contenders import Contender, ours, theirs
from figures import OURS
from measure import alternate, bandwidth, medians
from rotation import CALLS_PER_SET, Rotation
from rows import Row

import fastreduce

# On one GPU the program "host" sends 2 k n bytes over PCIe, which is about 60 times slower than an
# H100's memory (predicted). Larger sizes show nothing new, and would take most of the time.
MOST_HOST_BYTES = 16 << 20


@dataclass(frozen=True)
class Case:
    """Tensors of these shapes on every rank, and engines that use the same devices."""

    shapes: list[tuple[int, ...]]
    dtype: torch.dtype
    k: int
    op: str
    engines: list[str]
    model: str | None = None  # whose gradients these are

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
            "model": self.model,
            "type": str(self.dtype).removeprefix("torch."),
            "redop": self.op,
            "k": self.k,
        }

    def failure(self, who: Contender | None, error: Exception) -> Row:
        """The failure of a contender, or of the whole case if ``who`` is None."""
        first_line = next(iter(str(error).splitlines()), "")
        return {
            **self.columns(),
            "engine": who.engine if who else None,
            "algorithm": who.algorithm if who else None,
            "error": f"{type(error).__name__}: {first_line}",
        }


def devices_of(engine: str) -> list[torch.device]:
    if not has_gpu():
        return [torch.device("cpu")]
    count = torch.cuda.device_count() if "gpus" in engine else 1
    return [torch.device("cuda", i) for i in range(count)]


def fits(case: Case) -> bool:
    if not has_gpu():
        return True
    torch.cuda.empty_cache()
    needed = Buffers.needed_bytes(case.size_bytes, case.k, case.dtype, cache_bytes())
    free, _ = torch.cuda.mem_get_info()
    if needed > free:
        what = f"{case.size_bytes} B per rank, k = {case.k}"
        print(f"# {what}: left out, needs {needed / 1e9:.0f} GB of GPU memory", flush=True)
    return needed <= free


def contenders_of(case: Case, args: argparse.Namespace) -> list[Contender]:
    own = [
        ours(engine, name, case.op)
        for engine in case.engines
        for name in args.algorithm
        if (engine, name) != ("events", "host") or case.size_bytes <= MOST_HOST_BYTES
    ]
    several = len(devices_of(case.engines[0])) > 1
    others = theirs(case.dtype, case.op, case.k, has_gpu(), args.against)
    return own + [x for x in others if x.algorithm == "loop" or not several]


def most_sets(case: Case, contenders: Iterable[Contender], wanted: int) -> int:
    """As many sets as leave the events engine room for every contender's graph of every set.

    Those of "flags" too, since it runs by events what it cannot run itself. A model's gradients on
    the CPU are one set, because each step uses the same memory, in the cache.
    """
    if len(case.shapes) > 1 and not has_gpu():
        return 1
    graphs_per_set = sum(x.engine in OURS[1:] for x in contenders)
    return max(1, min(wanted, GRAPHS_KEPT // max(1, graphs_per_set)))


def passes(buffers: Buffers) -> dict[str, Rotation]:
    """What only reads and writes as many bytes as an allreduce over these buffers must.

    On one GPU a copy, and a kernel that changes the signs in place: captured copies of large
    memory may be slow (pytorch issue 191284; 256 MiB on an H100, driver 580, 2026-11-22: 443 us,
    where kernels took 360).
    """
    first, *others = buffers.devices
    sets = list(buffers.pools[0])
    # As integers of 4 bytes, so that the work does not depend on the dtype.
    ints = [each.view(-1).view(torch.int32) for each in sets]
    if not buffers.on_gpu:
        calls = {"one pass": [partial(x.add_, 0) for x in ints]}
    elif not others:
        target = torch.empty_like(buffers.pools[0])
        copies = [partial(y.copy_, x) for x, y in zip(sets, target, strict=True)]
        calls = {"one copy": copies, "one kernel": [x.neg_ for x in ints]}
    else:
        elems = max(1, 2 * (buffers.k - 1) * buffers.count_elems // buffers.k)
        source = torch.empty(elems, dtype=buffers.dtype, device=first)
        target = torch.empty_like(source, device=others[0])
        calls = {"one copy": [partial(target.copy_, source)]}
    pass_ = Contender("one", "pass", lambda ranks: ranks)
    return {name: Rotation(buffers, pass_, of_pass) for name, of_pass in calls.items()}


class Contest:
    """The contenders of a case, their buffers, and how many wrong elements each left in them."""

    def __init__(self, case: Case, args: argparse.Namespace, failures: list[Row]) -> None:
        self.case, self.args, self.failures = case, args, failures
        contenders = contenders_of(case, args)
        devices, sets = devices_of(case.engines[0]), most_sets(case, contenders, args.sets)
        self.buffers = Buffers(case.shapes, case.dtype, case.k, devices, cache_bytes(), sets)
        self.wrong: dict[str, int] = {}
        self.rotations = self.those_that_can(self._prepare, contenders)
        self.contenders = [x for x in contenders if x.name in self.rotations]
        self.passes = passes(self.buffers)
        self.buffers.zero()

    def those_that_can(
        self, step: Callable[[Contender], Rotation], contenders: Iterable[Contender]
    ) -> dict[str, Rotation]:
        """The results of ``step`` by name. If one raises, the others still run."""
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
        return self._seconds({**self.passes, **self.rotations})

    def seconds_captured(self) -> dict[str, float]:
        if not self.buffers.on_gpu or len(self.buffers.devices) > 1:
            return {}
        for each in self.passes.values():
            each.run_all()
        replays = self.those_that_can(self._capture, self.contenders)
        captured = {name: each.captured() for name, each in self.passes.items()}
        turns = self._seconds({**captured, **replays})
        return {name: seconds / len(self.buffers.sets) for name, seconds in turns.items()}

    def _seconds(self, rotations: dict[str, Rotation]) -> dict[str, float]:
        """Seconds of one call. Warm-up uses all sets, because the engine has a graph for each."""
        calls = max(len(x.calls) for x in rotations.values())
        # On GPUs values grow with every call until the next refill, so a sample has few calls.
        most = CALLS_PER_SET * calls if self.buffers.on_gpu else 1 << 20
        samples = alternate(rotations, self.args.n, self.args.w * calls, Rotation.seconds, most)
        fastest = min(min(of_contender) for of_contender in samples.values())
        return medians(samples) | {"limit": fastest}

    def host_seconds(self) -> dict[str, float]:
        if not self.buffers.on_gpu:
            return {}
        return {name: x.host_seconds(self.args.n) for name, x in self.rotations.items()}

    def auto_is(self) -> str | None:
        """What "auto" stands for; None for several GPUs, where it depends on their links."""
        if len(self.buffers.devices) > 1:
            return None
        return fastreduce.explain(self.buffers.sets[0]).algorithm


def measure(case: Case, args: argparse.Namespace, failures: list[Row]) -> list[Row]:
    """One row per contender that runs; those that fail are added to ``failures``."""
    contest = Contest(case, args, failures)
    called, host_s = contest.seconds_called(), contest.host_seconds()
    captured = contest.seconds_captured()
    limit_s = min(seconds["limit"] for seconds in (called, captured) if seconds)
    auto_is = contest.auto_is()
    return [
        {
            **case.columns(),
            "devices": min(case.k, len(contest.buffers.devices)),
            "working_set_bytes": contest.buffers.working_set_bytes,
            "from_memory": contest.buffers.from_memory,
            "engine": x.engine,
            "algorithm": x.algorithm,
            "called": speed(contest, called, x, limit_s),
            "captured": speed(contest, captured, x, limit_s),
            "host_s": host_s.get(x.name),
            "auto_is": auto_is if x.algorithm == "auto" else None,
            "wrong_elems": contest.wrong[x.name],
        }
        for x in contest.contenders
    ]


def speed(
    contest: Contest, seconds: dict[str, float], of: Contender, limit_s: float
) -> dict[str, Any] | None:
    if of.name not in seconds:
        return None
    case, time_s = contest.case, seconds[of.name]
    named = {
        x.algorithm: seconds[x.name]
        for x in contest.contenders
        if x.engine == of.engine in OURS and x.algorithm != "auto" and x.name in seconds
    }
    best = min(named, key=named.__getitem__, default=None)
    from_memory = contest.buffers.from_memory
    return {
        **bandwidth(case.size_bytes, time_s, case.k),
        "moved_gb_per_s": 2 * case.k * case.size_bytes / time_s / 1e9,
        "of_pass": min(seconds[name] for name in contest.passes) / time_s,
        "of_limit": limit_s / time_s if from_memory else None,
        "over_loop": seconds["torch loop"] / time_s if "torch loop" in seconds else None,
        "over_best": time_s / named[best] if best else None,
        "best": best,
    }
