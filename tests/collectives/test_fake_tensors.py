"""Fake tensors, with which torch traces: calls take them and write nothing."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from fastreduce import all_gather, allreduce, broadcast, reduce, reduce_scatter


def test_they_go_through():
    with FakeTensorMode():
        tensors = [torch.ones(3), torch.ones(3)]
        outputs = [torch.empty(6), torch.empty(6)]
        allreduce(tensors)
        reduce(tensors, 1)
        broadcast(tensors)
        all_gather(outputs, tensors)
        reduce_scatter(tensors, outputs)
        assert tensors[0].shape == (3,)


def test_ranks_without_tensors():
    with FakeTensorMode():
        assert allreduce([[], []]) is None


def test_of_inference_mode_go_through_outside():
    """As Inductor has them, where a compiled function enters inference mode itself."""
    with FakeTensorMode():
        with torch.inference_mode():
            tensors = [torch.ones(3), torch.ones(3)]
        assert allreduce(tensors) is None


def test_among_inputs_alone():
    with FakeTensorMode():
        fake = [torch.ones(3), torch.ones(3)]
    outputs = [torch.zeros(6), torch.zeros(6)]
    with pytest.raises(Exception, match=r"(?i)fake|memory"):
        all_gather(outputs, fake)
    assert outputs[0].tolist() == [0.0] * 6
