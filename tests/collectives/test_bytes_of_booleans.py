"""Booleans that are views of other memory: torch takes every byte but 0 for true, and so does a
call."""

import itertools
from functools import reduce

import numpy as np
import pytest
import torch

from fastreduce import allreduce, broadcast, reduce_scatter

# Truth in three ranks, in every combination, by bytes without a bit in common.
ROWS = [row for row in itertools.product((0, 1), repeat=3)]
BYTES = (1, 2, 4)
FOLD = {
    **{"sum": np.logical_or, "max": np.logical_or, "bor": np.logical_or},
    **{"prod": np.logical_and, "min": np.logical_and, "band": np.logical_and},
    "bxor": np.logical_xor,
}


def booleans(layout):
    """Of three ranks."""
    memory = [
        torch.tensor([row[rank] * BYTES[rank] for row in ROWS], dtype=torch.uint8)
        for rank in range(3)
    ]
    return [layout(x.view(torch.bool)) for x in memory]


def wanted(op):
    return [bool(reduce(FOLD[op], row)) for row in ROWS]


LAYOUTS = {
    "contiguous": lambda x: x,
    "every other": lambda x: x.view(torch.uint8).repeat_interleave(2).view(torch.bool)[::2],
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("op", FOLD)
def test_of_any_bytes(op, layout):
    tensors = booleans(LAYOUTS[layout])
    allreduce(tensors, op)
    for tensor in tensors:
        assert [bool(x) for x in tensor.view(torch.uint8)] == wanted(op)


@pytest.mark.parametrize("op", FOLD)
def test_of_shards(op):
    tensors = [torch.cat([x.view(torch.uint8)] * 3).view(torch.bool) for x in booleans(lambda x: x)]
    outputs = [torch.zeros(len(ROWS), dtype=torch.bool) for _ in range(3)]
    reduce_scatter(outputs, tensors, op)
    for output in outputs:
        assert output.tolist() == wanted(op)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_moved_as_they_are(layout):
    tensors = booleans(LAYOUTS[layout])
    bytes_of_last = tensors[2].view(torch.uint8).tolist()
    assert max(bytes_of_last) == BYTES[2]
    broadcast(tensors, root=2)
    assert tensors[0].view(torch.uint8).tolist() == bytes_of_last
