"""``engine="flags"``: one kernel for each GPU, or here for each rank, which wait for each other."""

import pytest
import torch
from places import ALGORITHMS, LANES
from reference import assert_all_same, noise

from fastreduce import allreduce

ON_GPU = [pytest.param(name, marks=pytest.mark.gpu) for name in LANES]
lanes = pytest.mark.parametrize("place", ["cpu", *ON_GPU], indirect=True)


def by_flags(place, tensors, **how):
    allreduce(tensors, **how, **place.by_flags)


def wanted(values, **how):
    copies = [x.clone() for x in values]
    allreduce(copies, **how)
    return copies


@lanes
@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("elems", [1, 1003, 65_536, 1_000_003])
def test_every_algorithm(place, algorithm, elems):
    """The largest is served by events."""
    for k in (2, 3, 4, 8):
        values = noise(k, (elems,), torch.float32, seed=k)
        tensors = place.put(values)
        by_flags(place, tensors, algorithm=algorithm)
        assert_all_same(tensors, wanted(values, algorithm=algorithm))


def halved_and_called(tensors, times, call):
    for _ in range(times):
        for tensor in tensors:
            tensor.mul_(0.5)
        call(tensors)
        for tensor in tensors:
            tensor.add_(1)


@lanes
def test_calls_follow_each_other_without_waiting(place):
    """Late tensors, and what is done with the results, are in the order of the streams."""
    values = noise(4, (5000,), torch.float32)
    tensors, others = place.put(values), [x.clone() for x in values]
    place.synchronize()
    place.sleep()
    halved_and_called(tensors, 200, lambda x: by_flags(place, x, op="max"))
    halved_and_called(others, 200, lambda x: allreduce(x, op="max"))
    assert_all_same(tensors, others)


@lanes
@pytest.mark.parametrize("algorithm", ["sharded", "ring"])
def test_captured(place, algorithm):
    values = noise(4, (5000,), torch.float32)
    tensors = place.put(values)
    by_flags(place, tensors, op="max", algorithm=algorithm)
    replay = place.capture(lambda: by_flags(place, tensors, op="max", algorithm=algorithm))
    for shift in range(3):
        for tensor, value in zip(tensors, values, strict=True):
            tensor.copy_(value + shift)
        replay()
        assert_all_same(tensors, wanted([x + shift for x in values], op="max"))


@pytest.mark.gpu
def test_on_one_gpu_it_is_refused():
    tensors = [torch.ones(3, device="cuda") for _ in range(2)]
    with pytest.raises(ValueError, match="for ranks on several GPUs, but all are on cuda:0"):
        allreduce(tensors, engine="flags")
    assert all(x.eq(1).all() for x in tensors)
