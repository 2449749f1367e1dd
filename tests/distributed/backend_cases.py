"""What is called in a group, with which tensors: a table of cases, and tensors of each layout."""

import random
from dataclasses import dataclass, replace
from functools import cache

import torch
from backend_calls import CALLS, REDUCING
from reference import INTEGERS, OPS, noise, origin, powers, reduced

import fastreduce.distributed as fd

DIVIDED = tuple(x for x in INTEGERS if x not in (torch.uint16, torch.uint32, torch.uint64))

ALL_OPS = {
    **{dtype: [*ops] for dtype, ops in OPS.items()},
    **{dtype: [*OPS[dtype], "avg"] for dtype in DIVIDED},
    **{
        dtype: [*OPS[dtype], "premul_sum"]
        for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64)
    },
}

# Of float32: none, fewer than ranks, a line of the cache, the change from one-shot to sharded at
# 32 KiB, and more slices of 256 KiB than are on their way at a time, the last one short.
SIZES = [0, 1, 4, 16, 17, 8_191, 8_192, 8_193, 200_003]

# Where a tensor lies, and how. Of "mixed", the first rank's alone is in shared memory.
LAYOUTS = ["plain", "strided", "shared", "inside shared", "mixed", "negative"]


@dataclass(frozen=True)
class Case:
    call: str
    dtype: torch.dtype = torch.float32
    op: str = "sum"
    elems: int = 37
    layout: str = "plain"
    asynchronous: bool = False
    exact: bool = False  # in any order of summing


def short():
    """Each thing changes alone; operations with dtypes."""
    for call in CALLS:
        usual = Case(call)
        yield from (replace(usual, elems=elems) for elems in SIZES)
        for layout in LAYOUTS[1:]:
            yield from (replace(usual, layout=layout, elems=elems) for elems in (5, 20_011))
        yield from (replace(usual, asynchronous=True, elems=elems) for elems in (4, 200_003))
        for dtype, ops in ALL_OPS.items():
            for op in ops if call in REDUCING else ["sum"]:
                yield replace(usual, dtype=dtype, op=op)


def sampled(seed, count=1500):
    """All things change together."""
    choice = random.Random(seed).choice
    for _ in range(count):
        dtype = choice(list(ALL_OPS))
        layouts = LAYOUTS if dtype in (torch.float32, torch.float64) else LAYOUTS[:-1]
        call, elems = choice(list(CALLS)), choice(SIZES)
        op = choice(ALL_OPS[dtype]) if call in REDUCING else "sum"
        yield Case(call, dtype, op, elems, choice(layouts), choice([False, True]))


@cache
def values(k, dtype, elems, exact_for):
    if exact_for is None:
        return noise(k, (elems,), dtype, seed=elems)
    if exact_for == "prod":
        return powers(k, (elems,), dtype)
    return origin(4 * k, (elems,), dtype)[:k]  # small enough for FACTOR


def inputs(k, case):
    floats = case.dtype.is_floating_point or case.dtype.is_complex
    return values(k, case.dtype, case.elems, case.op if case.exact and floats else None)


def result(k, case):
    xs = inputs(k, case)
    if case.op == "premul_sum":
        return reduced("sum", [x * FACTOR for x in xs])
    if case.op == "avg" and case.dtype in DIVIDED:
        return reduced("sum", xs).div(k, rounding_mode="trunc")
    return reduced(case.op, xs)


FACTOR = 0.75


class Memory:
    """Tensors of one layout, and what lies around them, which nobody may write."""

    def __init__(self, layout, rank):
        self.layout, self.rank, self.around = layout, rank, []

    def copy(self, tensor):
        layout = {0: "shared"}.get(self.rank, "plain") if self.layout == "mixed" else self.layout
        n = len(tensor)
        if layout == "shared":
            return fd.empty(n, dtype=tensor.dtype).copy_(tensor)
        if layout == "inside shared":  # at another place on every rank
            return self._within(
                fd.empty(n + 64, dtype=tensor.dtype), slice(self.rank, self.rank + n), tensor
            )
        if layout == "strided":
            return self._within(torch.empty(2 * n, dtype=tensor.dtype), slice(0, 2 * n, 2), tensor)
        return tensor.clone()

    def given(self, tensor):
        """A copy that is only read: torch loses what is written to a view of negated values."""
        if self.layout == "negative":
            return torch.complex(torch.zeros_like(tensor), -tensor).conj().imag
        return self.copy(tensor)

    def _within(self, whole, place, tensor):
        whole.zero_()
        whole[place] = tensor
        outside = torch.ones(len(whole), dtype=torch.bool)
        outside[place] = False
        self.around.append((whole, outside))
        return whole[place]

    def untouched(self):
        return not any(whole[outside].view(torch.uint8).any() for whole, outside in self.around)
