"""A contender's calls on several sets of buffers in turn, timed by the clock or by CUDA events."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any

import torch
from buffers import Buffers
from contenders import Contender

# On one set the events engine enqueues the first call, captures the second, and replays from then
# on.
CALLS_TO_REPLAY = 3
# A sum in place multiplies values by k in every call. Values up to 2**-12 do not overflow in this
# many calls, even in float16 with k = 8.
CALLS_PER_SET = 8
# So few that they do not fill the launch queue (1,024 entries), because waiting for it would be
# counted: LeNet's loop launches 112 kernels per call for k = 8.
HOST_CALLS = 8
# The fewest samples for a steady median; slow calls get no more.
HOST_SAMPLES = 3
HOST_S = 0.05


class Rotation:
    """A contender's calls in turn, one per set of buffers."""

    def __init__(
        self, buffers: Buffers, contender: Contender, calls: Sequence[Callable[[], Any]]
    ) -> None:
        self.buffers, self.contender, self.calls = buffers, contender, calls

    @classmethod
    def of(cls, buffers: Buffers, contender: Contender) -> Rotation:
        return cls(buffers, contender, [contender.prepare(ranks) for ranks in buffers.sets])

    def captured(self) -> Rotation:
        """All calls of one turn as one CUDA graph; each must have been made before."""
        graph, pool = torch.cuda.CUDAGraph(), torch.cuda.graph_pool_handle()
        # If a capture fails, torch leaves its stream current and its allocator capturing, so that
        # every later capture would fail too.
        with torch.cuda.stream(torch.cuda.current_stream()), self.contender.chosen():
            try:
                with torch.cuda.graph(graph, pool=pool):
                    for call in self.calls:
                        call()
            except Exception:
                with suppress(RuntimeError):  # the capture has ended if only a call failed
                    torch._C._cuda_endAllocateToPool(self.buffers.devices[0].index, pool)
                raise
        return Rotation(self.buffers, self.contender, [graph.replay])

    def turns(self, repeats: int) -> Iterable[Callable[[], Any]]:
        """So many calls, beginning with the next set in turn. If each contender began with the same
        set, it would find in the cache what the previous one left there."""
        first = self.buffers.next_set % len(self.calls)
        self.buffers.next_set = (first + repeats) % len(self.buffers.sets)
        in_turn = [*self.calls[first:], *self.calls[:first]]
        return itertools.islice(itertools.cycle(in_turn), repeats)

    def run_all(self) -> None:
        with self.contender.chosen():
            for call in self.turns(len(self.calls)):
                call()

    def count_wrong(self, op: str) -> int:
        """Count after several calls, because the timed calls replay a graph and the first do
        not."""
        for _ in range(CALLS_TO_REPLAY - 1):
            self.run_all()
        return self.buffers.count_wrong(op, self.run_all)

    def seconds(self, repeats: int) -> float:
        """Seconds of so many calls; on GPUs by events, with fresh values, from an idle device."""
        if self.buffers.on_gpu:
            self.buffers.refill()
        with self.contender.chosen():
            return self._by_events(repeats) if self.buffers.on_gpu else self._by_clock(repeats)

    def _by_clock(self, repeats: int) -> float:
        turns = self.turns(repeats)
        begin = time.perf_counter()
        for call in turns:
            call()
        return time.perf_counter() - begin

    def _by_events(self, repeats: int) -> float:
        first, *others = self.buffers.devices
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        turns = self.turns(repeats)
        self.synchronize()
        begin.record(torch.cuda.current_stream(first))
        for call in turns:
            call()
        for device in others:
            torch.cuda.current_stream(first).wait_stream(torch.cuda.current_stream(device))
        end.record(torch.cuda.current_stream(first))
        end.synchronize()
        return begin.elapsed_time(end) * 1e-3

    def host_seconds(self, rounds: int) -> float:
        """The host's seconds of one call, enqueued on an idle device and not waited for."""
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
