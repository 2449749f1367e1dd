"""What the collectives must leave behind, by plain torch loops that share nothing with csrc/."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import reduce

import numpy as np
import torch
from expected import FOLD
from torch import Tensor
from torch.nn.parameter import is_lazy

from fastreduce import _C

# By dtype, the operations that it has: the extension's own table, so that a new row is tested.
OPS = {
    dtype: tuple(op for op, dtypes in _C.ops().items() if dtype in dtypes)
    for dtype in sorted({x for dtypes in _C.ops().values() for x in dtypes}, key=str)
}
FLOATS = tuple(dtype for dtype in OPS if dtype.is_floating_point)
FLOAT8 = tuple(dtype for dtype in FLOATS if dtype.itemsize == 1)
HALVES = tuple(dtype for dtype in FLOATS if dtype.itemsize == 2)
COMPLEX = tuple(dtype for dtype in OPS if dtype.is_complex)
INTEGERS = tuple(dtype for dtype in OPS if dtype not in (*FLOATS, *COMPLEX, torch.bool))

# The algorithms that reduce in ascending order of the ranks, rounding once: the loop's bits.
IN_RANK_ORDER = ("auto", "by-parameter", "host", "leader", "sharded")


def _first_gap(dtype: torch.dtype) -> int:
    """Up to here a float dtype has every integer (torch.finfo is wrong for float8_e5m2fnuz)."""
    return next(2**p for p in range(31) if p == 30 or float(_as(dtype, 2**p + 1)) != 2**p + 1)


def _as(dtype: torch.dtype, value: float) -> Tensor:
    return torch.tensor(float(value), dtype=torch.float64).to(dtype)


# Integers up to here are exact in the dtype; of the widest, more than any test asks for.
EXACT = {
    **{dtype: _first_gap(dtype) for dtype in FLOATS},
    **{dtype: min(torch.iinfo(dtype).max, 2**62) for dtype in INTEGERS},
    torch.bool: 1,
}

# torch knows no arithmetic of the wider unsigned integers; NumPy does, and wraps as torch does.
NUMPY_FOLD = {
    **{"sum": np.add, "prod": np.multiply, "min": np.minimum, "max": np.maximum},
    **{"band": np.bitwise_and, "bor": np.bitwise_or, "bxor": np.bitwise_xor},
}


@contextmanager
def threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def reduced(op: str, tensors: Sequence[Tensor]) -> Tensor:
    """The loop of the contract: ascending ranks from rank 0's value; narrow floats accumulate in
    float32 and are rounded once; avg divides the accumulator."""
    dtype = tensors[0].dtype
    if dtype.is_complex:
        return torch.view_as_complex(reduced(op, [torch.view_as_real(x) for x in tensors]))
    if dtype in INTEGERS:
        return torch.from_numpy(np.asarray(reduce(NUMPY_FOLD[op], [x.numpy() for x in tensors])))
    wide = torch.float32 if dtype in HALVES + FLOAT8 else dtype
    total = tensors[0].to(wide, copy=True)
    for tensor in tensors[1:]:
        total = FOLD[op](total, tensor.to(wide))
    if op == "avg":
        total = total / torch.full_like(total, len(tensors))
    return total.to(dtype)


def origin(k: int, shape: Sequence[int], dtype: torch.dtype) -> list[Tensor]:
    """Values that tell their rank and index, and whose sums are exact in the dtype in any order."""
    if dtype.is_complex:
        real = origin(k, (*shape, 2), dtype.to_real())
        return [torch.view_as_complex(x) for x in real]
    index = torch.arange(math.prod(shape)).reshape(shape)
    limit = EXACT[dtype] // k
    if limit < 2:  # too narrow for all ranks: one of them speaks, whose turn it is by the index
        return [((index % k == r) * (1 + index % EXACT[dtype])).to(dtype) for r in range(k)]
    return [((r * 31 + index) % limit).to(dtype) for r in range(k)]


def powers(k: int, shape: Sequence[int], dtype: torch.dtype) -> list[Tensor]:
    """Values whose products are exact in any order."""
    index = torch.arange(math.prod(shape)).reshape(shape)
    choice = torch.tensor([1.0, -2.0, 0.5, -1.0])
    return [choice[(index + r) % 4].to(dtype) for r in range(k)]


def noise(k: int, shape: Sequence[int], dtype: torch.dtype, seed: int = 0) -> list[Tensor]:
    """Values whose sums show the order of summing, among them every kind of special one."""
    generator = torch.Generator().manual_seed(seed)
    return [_noise(shape, dtype, generator) for _ in range(k)]


def _noise(shape: Sequence[int], dtype: torch.dtype, generator: torch.Generator) -> Tensor:
    if dtype.is_complex:
        return torch.view_as_complex(_noise((*shape, 2), dtype.to_real(), generator))
    if not dtype.is_floating_point:
        if dtype == torch.bool:
            return torch.randint(0, 2, shape, generator=generator).bool()
        signed = INTEGER_OF[dtype.itemsize]
        low, high = torch.iinfo(signed).min, torch.iinfo(signed).max
        return torch.randint(low, high, shape, dtype=signed, generator=generator).view(dtype)
    as_int = INTEGER_OF[dtype.itemsize]
    random_bits = _noise(shape, as_int, generator).view(dtype)  # subnormals, infinities, ...
    # A NaN with a payload has no promised sum: torch's own loops disagree on them.
    random_bits = torch.where(random_bits.float().isnan(), math.nan, random_bits.double())
    ordinary = torch.randn(shape, generator=generator, dtype=torch.float64)
    rare = torch.rand(shape, generator=generator) < 0.1
    minus_zero = torch.rand(shape, generator=generator) < 0.1
    chosen = torch.where(rare, random_bits, ordinary)
    return torch.where(minus_zero, -0.0, chosen).to(dtype)


INTEGER_OF = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def integer_bits(tensor: Tensor) -> Tensor:
    """The tensor's bits, those of every NaN alike."""
    flat = tensor.detach().resolve_conj().resolve_neg().contiguous().reshape(-1)
    if flat.is_complex():
        flat = torch.view_as_real(flat).reshape(-1)
    as_integers = flat.view(INTEGER_OF[flat.itemsize])
    if not flat.dtype.is_floating_point:
        return as_integers
    return as_integers.masked_fill(flat.double().isnan(), -1)


def assert_same(actual: Tensor, wanted: Tensor) -> None:
    """Same dtype, shape and bits, except that any NaN is a NaN."""
    assert (actual.dtype, actual.shape) == (wanted.dtype, wanted.shape)
    torch.testing.assert_close(integer_bits(actual), integer_bits(wanted), rtol=0, atol=0)


def assert_all_same(tensors: Sequence[Tensor], wanted: Sequence[Tensor]) -> None:
    """Rank by rank, on whatever device each is."""
    for tensor, other in zip(tensors, wanted, strict=True):
        assert_same(tensor.cpu(), other.cpu())


def unsigned_zeros(tensor: Tensor) -> Tensor:
    """For min and max, of which torch itself leaves open whether -0 or +0 is less."""
    if not tensor.dtype.is_floating_point:
        return tensor
    return (tensor.double() + 0.0).to(tensor.dtype)


def assert_all_ranks_hold(op: str, tensors: Sequence[Tensor], wanted: Tensor) -> None:
    for tensor in tensors:
        assert_same(tensor, tensors[0])
    if op in ("min", "max"):
        assert_same(unsigned_zeros(tensors[0]), unsigned_zeros(wanted))
    else:
        assert_same(tensors[0], wanted)


def bytes_of(item: object) -> list[bytes]:
    """All memory behind the tensors and arrays among a call's arguments, gaps included."""
    if isinstance(item, dict):
        item = list(item.values())
    if isinstance(item, list | tuple):
        return [memory for part in item for memory in bytes_of(part)]
    if isinstance(item, np.ndarray):
        return [item.tobytes()]
    if not isinstance(item, Tensor) or item.is_meta or is_lazy(item):
        return []
    if item.is_nested:
        item = item.to_padded_tensor(0)
    elif item.is_quantized:
        item = item.int_repr()
    elif item.layout != torch.strided:
        item = item.to_dense()
    return [bytes(item.untyped_storage().cpu())]
