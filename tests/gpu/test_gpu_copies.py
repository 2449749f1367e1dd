"""What `fastreduce tune` times between two GPUs: a copy by a kernel and by the copy engine."""

import pytest
import torch
from places import SEVERAL
from reference import assert_same, noise

from fastreduce.plan import copies

TWO = pytest.param("GPUs 0 1", marks=pytest.mark.gpu)
CALLS = 3  # which are enqueued, recorded as a graph, and replayed


@pytest.mark.parametrize("place", ["cpu", TWO], indirect=True)
@pytest.mark.parametrize("way", copies.WAYS)
@pytest.mark.parametrize("elems", [1, 4099, 1 << 20])
def test_arrives(place, way, elems):
    values = noise(2, (elems,), torch.float32)
    tensors = place.put(values)
    with copies.as_before():
        for call in range(CALLS):
            tensors[0].copy_(values[0] + call)
            copies.copy(way, [[x] for x in tensors])
            assert_same(tensors[1].cpu(), values[0] + call)


@pytest.mark.gpu
@pytest.mark.parametrize("place", SEVERAL, indirect=True)
def test_there_are_two_gpus_of_each_place(place):
    gpus = sorted(set(place.devices), key=str)
    pairs = copies.pairs(gpus)
    assert pairs and pairs.keys() <= {"nvlink", "pcie"}
    assert all(set(pair) <= {str(gpu) for gpu in gpus} for pair in pairs.values())
