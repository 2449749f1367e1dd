"""Calls over several sets of buffers in turn, so that data comes from memory, not from a cache."""

from __future__ import annotations

import itertools
import math
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import reduce
from typing import Any

import torch
from competitors import Contender, Ranks

# The events engine's own limit (kMaxGraphs), for all contenders that use it together: it keeps a
# graph for each program and set of buffers, and more of them would measure misses.
GRAPHS_KEPT = 64
# Of the calls on one set the events engine enqueues the first, captures the second, and replays.
CALLS_TO_REPLAY = 3
# A sum in place grows k-fold a call; of values up to 2**-12 none overflows in as many calls, also
# in float16 with k = 8.
CALLS_A_SET = 8
# As few as this do not fill the launch queue (1,024 entries), whose wait would be counted: LeNet's
# loop launches 112 kernels a call for k = 8.
HOST_CALLS = 8
# The median of so few is steady enough, and slow calls get no more of them.
HOST_SAMPLES = 3
HOST_S = 0.05
ALIGN_ELEMS = 128
REFILL_ELEMS = 1 << 28

FOLD: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "sum": torch.add,
    "avg": torch.add,
    "prod": torch.mul,
    "min": torch.minimum,
    "max": torch.maximum,
    "band": torch.bitwise_and,
    "bor": torch.bitwise_or,
    "bxor": torch.bitwise_xor,
}


class Buffers:
    """Sets of k ranks' tensors of these shapes; rank r lives on device r modulo their number."""

    def __init__(
        self,
        shapes: Sequence[tuple[int, ...]],
        dtype: torch.dtype,
        k: int,
        devices: Sequence[torch.device],
        cache_bytes: int,
        most_sets: int = GRAPHS_KEPT,
    ) -> None:
        lengths = [math.prod(shape) for shape in shapes]
        starts = [0, *itertools.accumulate(-(-n // ALIGN_ELEMS) * ALIGN_ELEMS for n in lengths)]
        self.devices, self.k, self.dtype = list(devices), k, dtype
        self.count_elems = sum(lengths)
        self.size_bytes = self.count_elems * dtype.itemsize
        # Twice the cache: by the time a set comes round again nothing of it is left.
        enough = -(-2 * cache_bytes // max(1, k * self.size_bytes))
        sets = min(max(1, enough), most_sets)
        self.working_set_bytes = sets * k * self.size_bytes
        slots = -(-k // len(self.devices))
        self.pools = [
            torch.empty(sets, slots, starts[-1], dtype=dtype, device=device)
            for device in self.devices
        ]

        def tensors(number: int, rank: int) -> list[torch.Tensor]:
            slot, at = divmod(rank, len(self.devices))
            memory = self.pools[at][number, slot]
            return [
                memory[start : start + length].view(shape)
                for start, length, shape in zip(starts, lengths, shapes, strict=False)
            ]

        self.sets: list[Ranks] = [[tensors(i, rank) for rank in range(k)] for i in range(sets)]

    @property
    def on_gpu(self) -> bool:
        return self.devices[0].type == "cuda"

    @staticmethod
    def needed_bytes(size_bytes: int, k: int, dtype: torch.dtype, cache_bytes: int) -> int:
        """At most: the sets, the copy's target, competitors' scratch memory twice, the check's."""
        sets = max(2 * cache_bytes, k * size_bytes) + k * size_bytes
        return 2 * sets + 2 * (k + 2) * size_bytes + 40 * size_bytes // dtype.itemsize

    def refill(self) -> None:
        scale = 2.0**-12 if self.dtype.is_floating_point else 100.0
        for pool in self.pools:
            for part in pool.view(-1).split(REFILL_ELEMS):
                part.copy_(torch.rand(part.shape, device=part.device).mul_(scale))

    def count_wrong(self, op: str, run_all: Callable[[], Any]) -> int:
        """Elements of the first and the last set that are not what they must be afterwards."""
        checked = [self.sets[0], self.sets[-1]][: len(self.sets)]
        for ranks in checked:
            for rank, tensors in enumerate(ranks):
                for tensor in tensors:
                    tensor.copy_(exact(op, rank, tensor))
        run_all()
        wrong = torch.zeros((), dtype=torch.int64)
        for ranks in checked:
            for tensors in zip(*ranks, strict=True):
                wanted = reduced(op, len(ranks), tensors[0])
                for tensor in tensors:
                    wrong += (tensor != wanted.to(tensor.device)).sum().cpu()
        return int(wrong)


def exact(op: str, rank: int, like: torch.Tensor) -> torch.Tensor:
    """Values that tell rank and index; for up to 8 ranks any order gives the same bits."""
    index = torch.arange(like.numel(), device=like.device).view(like.shape)
    return (index + rank) % 2 + 1 if op == "prod" else index % 13 + rank


def reduced(op: str, k: int, like: torch.Tensor) -> torch.Tensor:
    total = reduce(FOLD[op], (exact(op, rank, like) for rank in range(k)))
    return (total / k if op == "avg" else total).to(like.dtype)


class Rotation:
    """A contender's calls, one for each set of buffers, in turn."""

    def __init__(
        self, buffers: Buffers, contender: Contender, calls: Sequence[Callable[[], Any]]
    ) -> None:
        self.buffers, self.contender, self.calls = buffers, contender, calls
        self._turn = itertools.cycle(calls)

    @classmethod
    def of(cls, buffers: Buffers, contender: Contender) -> Rotation:
        return cls(buffers, contender, [contender.prepare(ranks) for ranks in buffers.sets])

    def captured(self) -> Rotation:
        """The whole turn as one CUDA graph; every call has been made before."""
        graph, pool = torch.cuda.CUDAGraph(), torch.cuda.graph_pool_handle()
        # Where a capture fails torch leaves its stream current and its allocator capturing, and
        # every later capture would fail with it.
        with torch.cuda.stream(torch.cuda.current_stream()), self.contender.chosen():
            try:
                with torch.cuda.graph(graph, pool=pool):
                    for call in self.calls:
                        call()
            except Exception:
                with suppress(RuntimeError):  # it has ended where only a call had failed
                    torch._C._cuda_endAllocateToPool(self.buffers.devices[0].index, pool)
                raise
        return Rotation(self.buffers, self.contender, [graph.replay])

    def run(self, repeats: int) -> None:
        for call in itertools.islice(self._turn, repeats):
            call()

    def run_all(self) -> None:
        with self.contender.chosen():
            self.run(len(self.calls))

    def count_wrong(self, op: str) -> int:
        """Of the call that will be timed, and so not of the first."""
        for _ in range(CALLS_TO_REPLAY - 1):
            self.run_all()
        return self.buffers.count_wrong(op, self.run_all)

    def seconds(self, repeats: int) -> float:
        """Of so many calls, on fresh values; on GPUs by events, from idle."""
        self.buffers.refill()
        with self.contender.chosen():
            return self._by_events(repeats) if self.buffers.on_gpu else self._by_clock(repeats)

    def _by_clock(self, repeats: int) -> float:
        begin = time.perf_counter()
        self.run(repeats)
        return time.perf_counter() - begin

    def _by_events(self, repeats: int) -> float:
        first, *others = self.buffers.devices
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        self.synchronize()
        begin.record(torch.cuda.current_stream(first))
        self.run(repeats)
        for device in others:
            torch.cuda.current_stream(first).wait_stream(torch.cuda.current_stream(device))
        end.record(torch.cuda.current_stream(first))
        end.synchronize()
        return begin.elapsed_time(end) * 1e-3

    def host_seconds(self, rounds: int) -> float:
        """The host's share of one call: enqueued on an idle device, not waited for."""
        samples: list[float] = []
        begin = time.perf_counter()
        with self.contender.chosen():
            while len(samples) < HOST_SAMPLES or (
                len(samples) < rounds and time.perf_counter() - begin < HOST_S
            ):
                self.synchronize()
                samples.append(self._by_clock(HOST_CALLS) / HOST_CALLS)
        self.synchronize()
        return statistics.median(samples)

    def synchronize(self) -> None:
        for device in self.buffers.devices:
            torch.cuda.synchronize(device)
