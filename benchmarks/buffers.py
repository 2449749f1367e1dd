"""Sets of buffers, used in turn. Together they exceed the cache, so data comes from memory."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from expected import contribution, expected

from fastreduce import _C

Ranks = list[list[torch.Tensor]]
# The events engine keeps a graph for each program and set of buffers, 256 MiB of them
# (most_graph_bytes in csrc/cuda/graph_cache.h). With more sets every call would record a graph
# again, and that would be timed. So many of the largest fit: a ring of 8 ranks in 8 slices has 896
# launches, which take about 2.7 MB as csrc/cuda/call_graph.cpp counts them (predicted).
GRAPHS_KEPT = 64
ALIGN_ELEMS = 128
REFILL_ELEMS = 1 << 28


def has_gpu() -> bool:
    return torch.cuda.is_available() and _C.cuda_engines


def cache_bytes() -> int:
    """The bytes of the GPU's L2, or of all last-level caches of the CPU together; 0 if unknown."""
    if has_gpu():
        return torch.cuda.get_device_properties(0).L2_cache_size
    return cpu_cache_bytes(Path("/sys/devices/system/cpu"))


def cpu_cache_bytes(system: Path) -> int:
    """From Linux's description: every cache is listed under each CPU that shares it."""
    found: dict[int, dict[str, int]] = {}
    for folder in system.glob("cpu[0-9]*/cache/index[0-9]*"):
        level, shared_by, kib = (
            (folder / name).read_text().strip() for name in ("level", "shared_cpu_list", "size")
        )
        found.setdefault(int(level), {})[shared_by] = int(kib.removesuffix("K")) << 10
    return sum(found[max(found)].values()) if found else 0


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
        # Twice the cache, so that no part of a set is still in the cache when it is used again.
        enough = -(-2 * cache_bytes // max(1, k * self.size_bytes))
        sets = min(max(1, enough), most_sets)
        self.working_set_bytes = sets * k * self.size_bytes
        self.from_memory = 0 < 2 * cache_bytes <= self.working_set_bytes
        self.next_set = 0
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
        """The most: the sets, the copy's target, twice a contender's scratch memory, and the
        check's."""
        sets = max(2 * cache_bytes, k * size_bytes) + k * size_bytes
        return 2 * sets + 2 * (k + 2) * size_bytes + 40 * size_bytes // dtype.itemsize

    def zero(self) -> None:
        """Zeros, because repeated sums in place keep them, and a CPU adds zeros no faster."""
        for pool in self.pools:
            pool.zero_()

    def refill(self) -> None:
        """Random values as in training, because a GPU's clock depends on the bits that it moves."""
        scale = 2.0**-12 if self.dtype.is_floating_point else 100.0
        for pool in self.pools:
            for part in pool.view(-1).split(REFILL_ELEMS):
                part.copy_(torch.rand(part.shape, device=part.device).mul_(scale))

    def count_wrong(self, op: str, run_all: Callable[[], Any]) -> int:
        """How many elements of the first and the last set are wrong after ``run_all``."""
        checked = [self.sets[0], self.sets[-1]][: len(self.sets)]
        for ranks in checked:
            for rank, tensors in enumerate(ranks):
                for tensor in tensors:
                    tensor.copy_(contribution(op, rank, tensor))
        run_all()
        wrong = torch.zeros((), dtype=torch.int64)
        for ranks in checked:
            for tensors in zip(*ranks, strict=True):
                wanted = expected(op, len(ranks), tensors[0])
                for tensor in tensors:
                    wrong += (tensor != wanted.to(tensor.device)).sum().cpu()
        return int(wrong)
