"""The contenders: fastreduce's engines and programs, and what a user would write instead.

A contender's ``prepare(ranks)`` takes one list of tensors per rank and returns a call that leaves
the reduction in all of them. Work that is needed only once (wrapping arrays) is done in it.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from typing import Any

import torch
from buffers import Ranks

import fastreduce
from fastreduce import _C

try:
    import triton
    import triton.language as tl
except ImportError:
    triton = None

FLOATS = (torch.float32, torch.float16, torch.bfloat16)
# A block of 128 threads: two 16-byte loads per thread and rank of float32, one of 16-bit floats.
TRITON_BLOCK = 1024
# What fastreduce is compared with: the engine or the algorithm of a contender.
AGAINST = ("loop", "stack", "foreach", "compile", "cupy", "triton")


@dataclass(frozen=True)
class Contender:
    engine: str
    algorithm: str
    prepare: Callable[[Ranks], Callable[[], Any]]

    @property
    def name(self) -> str:
        return f"{self.engine} {self.algorithm}"

    @contextmanager
    def chosen(self) -> Iterator[None]:
        """Sets the lanes while its calls run, because calls do not name them."""
        lane_per_rank = self.engine in ("events", "flags")
        if lane_per_rank:
            _C.set_lane_per_rank(True)
        try:
            yield
        finally:
            if lane_per_rank:
                _C.set_lane_per_rank(False)


def ours(engine: str, algorithm: str, op: str) -> Contender:
    how = {"algorithm": algorithm, "engine": "flags" if "flags" in engine else "auto"}
    return Contender(
        engine, algorithm, lambda ranks: partial(fastreduce.allreduce, ranks, op, **how)
    )


def theirs(
    dtype: torch.dtype, op: str, k: int, on_gpu: bool, against: Collection[str] = AGAINST
) -> list[Contender]:
    """Those of ``against`` that can sum this dtype here; none for other operations."""
    if op != "sum" or dtype.itemsize == 1 or dtype.is_complex:
        return []
    can = {
        "loop": lambda: Contender("torch", "loop", lambda ranks: partial(each, loop, ranks)),
        "stack": lambda: Contender("torch", "stack", lambda ranks: partial(each, stack, ranks)),
        "foreach": lambda: Contender("torch", "foreach", lambda ranks: partial(foreach, ranks)),
        "compile": compiled,
    }
    if dtype in (torch.float32, torch.float16):
        can["cupy"] = lambda: Contender("cupy", "elementwise", elementwise)
    if dtype in FLOATS and k > 1:
        can["triton"] = lambda: Contender("triton", "kernel", triton_kernel)
    lacking = absent(on_gpu)
    return [make() for name, make in can.items() if name in against and name not in lacking]


def absent(on_gpu: bool) -> dict[str, str]:
    """Which of `AGAINST` cannot run here, and why."""
    lacking = {}
    if not on_gpu and shutil.which(cxx := os.environ.get("CXX", "g++")) is None:
        lacking["compile"] = f"no compiler {cxx}"
    if on_gpu and triton is None:
        lacking["compile"] = "no triton"
    for name in ("cupy", "triton"):
        if not on_gpu:
            lacking[name] = "no GPU"
        elif find_spec(name) is None:
            lacking[name] = "not installed"
    return lacking


def each(sum_in_place: Callable[[list[torch.Tensor]], None], ranks: Ranks) -> None:
    for tensors in zip(*ranks, strict=True):
        sum_in_place(list(tensors))


def loop(data: list[torch.Tensor]) -> None:
    """*Dive into Deep Learning*, section 12.5.4: sum into rank 0, copy back."""
    for i in range(1, len(data)):
        data[0][:] += data[i].to(data[0].device)
    for i in range(1, len(data)):
        data[i][:] = data[0].to(data[i].device)


def stack(data: list[torch.Tensor]) -> None:
    total = torch.stack(data).sum(0)
    for tensor in data:
        tensor.copy_(total)


def foreach(ranks: Ranks) -> None:
    first, *others = ranks
    for rank in others:
        torch._foreach_add_(first, rank)
    for rank in others:
        torch._foreach_copy_(rank, first)


def compiled() -> Contender:
    """The sum over the lists, compiled by torch.compile once per case, in the check's first call.

    Compiled for fixed shapes: code for dynamic shapes is only as parallel as its first shape
    allows.
    """
    torch.compiler.reset()  # otherwise earlier cases count towards the limit of recompilations
    call = torch.compile(sum_lists, dynamic=False)
    return Contender("torch", "compile", lambda ranks: partial(call, ranks))


def sum_lists(ranks: Ranks) -> None:
    for tensors in zip(*ranks, strict=True):
        total = tensors[0]
        for tensor in tensors[1:]:
            total = total + tensor
        for tensor in tensors:
            tensor.copy_(total)


def elementwise(ranks: Ranks) -> Callable[[], None]:
    """One CuPy kernel per tensor, which reads every rank and writes every rank."""
    import cupy

    k = len(ranks)
    wide = "float" if ranks[0][0].dtype == torch.float16 else "T"
    total = " + ".join(f"({wide})x{r}" for r in range(k))
    kernel = cupy.ElementwiseKernel(
        ", ".join(f"T x{r}" for r in range(k)),
        ", ".join(f"T y{r}" for r in range(k)),
        f"const {wide} total = {total};" + "".join(f"y{r} = T(total);" for r in range(k)),
        f"sum_of_{k}",
    )
    arrays = [[cupy.from_dlpack(x) for x in tensors] for tensors in zip(*ranks, strict=True)]

    def call() -> None:
        with cupy.cuda.ExternalStream(torch.cuda.current_stream().cuda_stream):
            for of_ranks in arrays:
                kernel(*of_ranks, *of_ranks)

    return call


if triton:

    @triton.jit
    def _sum_all(pointers, count, BLOCK: tl.constexpr):
        at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
        inside = at < count
        total = tl.load(pointers[0] + at, inside).to(tl.float32)
        for rank in tl.static_range(1, len(pointers)):
            total += tl.load(pointers[rank] + at, inside).to(tl.float32)
        for rank in tl.static_range(len(pointers)):
            tl.store(pointers[rank] + at, total, inside)


def triton_kernel(ranks: Ranks) -> Callable[[], None]:
    """One Triton kernel per tensor, which reads every rank and writes every rank."""
    tensors = [tuple(of_ranks) for of_ranks in zip(*ranks, strict=True)]

    def call() -> None:
        for of_ranks in tensors:
            count = of_ranks[0].numel()
            _sum_all[(triton.cdiv(count, TRITON_BLOCK),)](of_ranks, count, BLOCK=TRITON_BLOCK)

    return call
