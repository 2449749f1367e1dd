"""A little of everything, quick enough to be run under compute-sanitizer.

``engine="flags"`` comes last: kernels that wait for each other may end with an error after which
CUDA does nothing more for this process.
"""

import pytest
import torch
from places import ALGORITHMS, LANES
from reference import OPS, assert_all_same, noise, origin

from fastreduce import all_gather, allreduce, broadcast, reduce, reduce_scatter

# One element, less than a vector, a whole tile and less or more than that, several tiles.
SIZES = (1, 7, 4096, 4099, 40_001)
KINDS = ((torch.float32, "sum"), (torch.bfloat16, "avg"), (torch.uint8, "max"))


@pytest.mark.parametrize(("dtype", "op"), KINDS, ids=str)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_allreduce(place, algorithm, dtype, op):
    for k in (2, 3, 8):
        for size in SIZES:
            wanted = noise(k, (size,), dtype)
            tensors = place.put(wanted)
            allreduce(wanted, op, algorithm=algorithm)
            allreduce(tensors, op, algorithm=algorithm)
            assert_all_same(tensors, wanted)


@pytest.mark.parametrize("dtype", OPS, ids=str)
def test_allreduce_with_every_kernel(place, dtype):
    for op in OPS[dtype]:
        wanted = noise(3, (4099,), dtype)
        tensors = place.put(wanted)
        allreduce(wanted, op)
        allreduce(tensors, op)
        assert_all_same(tensors, wanted)


@pytest.mark.parametrize("offset", [0, 1, 5])
def test_unaligned(place, offset):
    """Of which each rank is another number of elements off."""
    wanted = origin(4, (5000,), torch.float16)
    tensors = place.put(wanted)
    allreduce([x[offset * r : 4000 + offset * r] for r, x in enumerate(wanted)])
    allreduce([x[offset * r : 4000 + offset * r] for r, x in enumerate(tensors)])
    assert_all_same(tensors, wanted)


def test_the_other_collectives(place):
    for k in (1, 2, 5):
        wanted = noise(k, (k * 1000,), torch.float32)
        tensors = place.put(wanted)
        outputs = [x[:1000].clone() for x in wanted]
        found = place.put(outputs)
        for ranks, shards in ((wanted, outputs), (tensors, found)):
            reduce_scatter(shards, ranks)
            all_gather(ranks, shards)
            broadcast(shards, root=k - 1)
            reduce(ranks, root=k - 1, op="max")
        assert_all_same(tensors + found, wanted + outputs)


ON_GPU = [pytest.param(name, marks=pytest.mark.gpu) for name in LANES]


@pytest.mark.parametrize("place", ["cpu", *ON_GPU], indirect=True)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_flags(place, algorithm):
    """On one GPU, a kernel for each rank."""
    for k in (2, 3, 8):
        for size in SIZES:
            wanted = noise(k, (size,), torch.float32)
            tensors = place.put(wanted)
            allreduce(wanted, algorithm=algorithm)
            allreduce(tensors, algorithm=algorithm, **place.by_flags)
            assert_all_same(tensors, wanted)


@pytest.mark.parametrize("place", ["cpu", *ON_GPU], indirect=True)
def test_flags_captured(place):
    values = noise(4, (4099,), torch.float32)
    tensors, wanted = place.put(values), [x.clone() for x in values]
    allreduce(tensors, **place.by_flags)
    replay = place.capture(lambda: allreduce(tensors, **place.by_flags))
    for tensor, value in zip(tensors, values, strict=True):
        tensor.copy_(value)
    replay()
    allreduce(wanted)
    assert_all_same(tensors, wanted)
