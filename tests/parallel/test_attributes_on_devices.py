"""Tensors that are plain attributes, where replicas are on other devices: here on "meta"."""

import pytest
import torch
from torch import nn

from fastreduce.parallel.replicas import Replicas

CPU, OTHER = torch.device("cpu"), torch.device("meta")


class Masked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)
        self.mask = torch.ones(2)
        self.masks = {"first": [torch.ones(2)]}
        self.later = None


@pytest.fixture
def replicas():
    replicas = Replicas(Masked(), [CPU, CPU, OTHER])
    replicas.update()
    return replicas


def devices_of(replicas, name):
    return [getattr(module, name).device for module in replicas.modules]


def test_they_go_to_the_device_of_the_replica(replicas):
    assert devices_of(replicas, "mask") == [CPU, CPU, OTHER]
    assert [x.masks["first"][0].device for x in replicas.modules] == [CPU, CPU, OTHER]


@pytest.mark.parametrize("name", ["mask", "later"])
def test_so_do_those_that_are_set_between_passes(replicas, name):
    setattr(replicas.net, name, torch.zeros(2))
    replicas.update()
    assert devices_of(replicas, name) == [CPU, CPU, OTHER]


@pytest.mark.parametrize("gradients", [True, False])
def test_gradients_of_results_go_back_to_where_they_are_from(gradients):
    scale = torch.ones(2, requires_grad=True)
    net = Masked()
    net.mask = scale * 2
    replicas = Replicas(net, [CPU, OTHER])
    with torch.set_grad_enabled(gradients):
        replicas.update()
    net.later = scale * 3
    replicas.update()
    for name in ("mask", "later"):
        assert devices_of(replicas, name) == [CPU, OTHER]
        assert all(getattr(module, name).requires_grad for module in replicas.modules)


def test_those_elsewhere_stay_there():
    net = Masked()
    net.mask = torch.ones(2, device="meta")
    replicas = Replicas(net, [CPU, CPU])
    replicas.update()
    net.later = torch.ones(2, device="meta")
    replicas.update()
    assert devices_of(replicas, "mask") == devices_of(replicas, "later") == [OTHER, OTHER]
