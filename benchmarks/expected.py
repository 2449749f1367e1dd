"""The right results of reductions, by torch's own operations: for the benchmarks' checks and
tests/.

Values depend on rank and index, so that misplaced data shows. For up to 8 ranks they are exact in
every dtype measured here, whatever the order of the ranks.
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
    largest = torch.full((1,), 8 * 12 + sum(range(8)))
    try:
        return bool((largest.to(dtype) == largest).all())
    except (NotImplementedError, RuntimeError, TypeError):
        return False
