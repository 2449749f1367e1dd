"""The right results of reductions, by torch's own operations: for the benchmarks' checks and
tests/.

Values depend on rank and index, so that misplaced data shows. For up to 8 ranks they are exact in
every dtype measured here, whatever the order of the ranks; for more see `is_exact`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce

import torch
from torch import Tensor

FOLD: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "sum": torch.add,
    "avg": torch.add,
    "prod": torch.mul,
    "min": torch.minimum,
    "max": torch.maximum,
    "band": torch.bitwise_and,
    "bor": torch.bitwise_or,
    "bxor": torch.bitwise_xor,
}


def contribution(op: str, rank: int, like: Tensor) -> Tensor:
    """This rank's values: int64, with the shape and device of ``like``."""
    index = torch.arange(like.numel(), device=like.device).view(like.shape)
    return (index + rank) % 2 + 1 if op == "prod" else index % 13 + rank


def expected(op: str, k: int, like: Tensor) -> Tensor:
    """What all ranks must hold afterwards, with the shape, dtype and device of ``like``."""
    total = reduce(FOLD[op], (contribution(op, rank, like) for rank in range(k)))
    return (total / k if op == "avg" else total).to(like.dtype)


def can_be_checked(dtype: torch.dtype) -> bool:
    """Whether the dtype holds every sum of `contribution` for 8 ranks, and torch compares it."""
    if dtype.is_complex:  # reduced as their parts
        return False
    largest = torch.full((1,), _largest_sum(8))
    try:
        return bool((largest.to(dtype) == largest).all())
    except (NotImplementedError, RuntimeError, TypeError):
        return False


def is_exact(op: str, dtype: torch.dtype, k: int) -> bool:
    """Whether every partial result of k ranks has a value of its own in ``dtype``; integers wrap.

    >>> is_exact("sum", torch.bfloat16, 13), is_exact("sum", torch.bfloat16, 16)
    (True, False)
    """
    if op not in ("sum", "avg") or not dtype.is_floating_point:
        return True
    return _largest_sum(k) <= 2 / torch.finfo(dtype).eps  # up to there it has all whole numbers


def _largest_sum(k: int) -> int:
    return 12 * k + sum(range(k))
