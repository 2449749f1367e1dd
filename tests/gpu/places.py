"""Where a test's ranks live: the CPU, one GPU under either engine, or several GPUs.

A test that takes the fixture ``place`` runs in all of them. What it asks is then known to be right
on the CPU before it is asked of a GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from fastreduce import _C, algorithms

# About 30 ms at 1.5 to 2 GHz: thousands of times what a call and its kernels take.
SLEEP_CYCLES = 50_000_000

ALGORITHMS = algorithms.names()


@dataclass(frozen=True)
class Place:
    """Rank r lives on device r modulo their number."""

    devices: tuple[torch.device, ...]

    def device(self, rank: int) -> torch.device:
        return self.devices[rank % len(self.devices)]

    @property
    def on_gpu(self) -> bool:
        return self.devices[0].type == "cuda"

    def put(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Copies, one for each rank."""
        return [x.to(self.device(rank), copy=True) for rank, x in enumerate(tensors)]

    @property
    def by_flags(self) -> dict[str, str]:
        """With this a call is one kernel for each GPU, which wait for each other; not on a CPU."""
        return {"engine": "flags"} if self.on_gpu else {}

    def sleep(self) -> None:
        """Keeps every device's current stream busy; a CPU has done its work when a call returns."""
        for device in set(self.devices) if self.on_gpu else ():
            with torch.cuda.device(device):
                torch.cuda._sleep(SLEEP_CYCLES)

    def synchronize(self) -> None:
        for device in set(self.devices) if self.on_gpu else ():
            torch.cuda.synchronize(device)

    @contextmanager
    def side_streams(self) -> Iterator[None]:
        """Streams of their own are current on all devices; they begin and end idle."""
        self.synchronize()
        with ExitStack() as stack:
            for device in set(self.devices) if self.on_gpu else ():
                stack.enter_context(torch.cuda.stream(torch.cuda.Stream(device)))
            yield
            self.synchronize()

    def capture(self, call: Callable[[], object]) -> Callable[[], object]:
        """What replays the call; on the CPU that is the call."""
        if not self.on_gpu:
            return call
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            call()

        def replay() -> None:
            """Ordered with the stream it is launched on; other GPUs know nothing of that one."""
            if len(set(self.devices)) == 1:
                return graph.replay()
            self.synchronize()
            graph.replay()
            self.synchronize()

        return replay


# Names and device numbers; several GPUs may have several ranks each.
SEVERAL = {"GPUs 0 1": (0, 1), "GPUs 1 0 0": (1, 0, 0), "GPUs 0 1 2 3": (0, 1, 2, 3)}
# Where each rank, or each GPU, has a stream of its own, and may wait for the others'.
LANES = ("events", *SEVERAL)
ON_GPU = ("tiles", *LANES)


def missing(name: str) -> str | None:
    """Why this place cannot be had here, or None."""
    if not torch.cuda.is_available():
        return "torch finds no GPU here"
    if not _C.cuda_engines:
        return "this build of fastreduce has no CUDA engines (FASTREDUCE_CUDA=1 builds them)"
    wanted, found = 1 + max(SEVERAL.get(name, (0,))), torch.cuda.device_count()
    return f"wants {wanted} GPUs, there are {found}" if found < wanted else None


@contextmanager
def place_named(name: str) -> Iterator[Place]:
    """One GPU is "tiles" or "events", the latter with a stream for each rank."""
    if name == "cpu":
        yield Place((torch.device("cpu"),))
        return
    if name == "events":
        _C.set_lane_per_rank(True)
    try:
        yield Place(tuple(torch.device("cuda", i) for i in SEVERAL.get(name, (0,))))
        torch.cuda.synchronize()  # an error of a kernel belongs to the test that launched it
    finally:
        if name == "events":
            _C.set_lane_per_rank(False)
