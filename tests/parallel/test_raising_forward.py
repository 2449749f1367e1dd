"""A forward pass that raises leaves the module as it was."""

import copy

import pytest
import torch
from torch import nn

from fastreduce import DataParallel


class Raising(nn.Module):
    """Writes to a buffer, replaces another, and raises for rows that begin with ``number``."""

    def __init__(self, number):
        super().__init__()
        self.norm, self.number = nn.BatchNorm1d(3), number
        self.register_buffer("rows", torch.zeros(()))

    def forward(self, x):
        self.rows = self.rows + len(x)
        y = self.norm(x)
        if (x[:, 0] == self.number).any():
            raise KeyError("mine")
        return y


@pytest.mark.parametrize("sync_batchnorm", [False, True])
@pytest.mark.parametrize("number", [0, 1, 2], ids=["first shard", "second", "last"])
def test_buffers_stay(number, sync_batchnorm):
    net = Raising(number)
    model = DataParallel(net, ["cpu"] * 3, sync_batchnorm=sync_batchnorm)
    X = torch.tensor([0.0, 0, 1, 1, 2, 2])[:, None] + torch.zeros(3)
    buffers, before = list(net.buffers()), copy.deepcopy(net.state_dict())
    with pytest.raises(KeyError, match="mine"):
        model(X)
    assert all(x is y for x, y in zip(net.buffers(), buffers, strict=True))
    for name, value in net.state_dict().items():
        assert torch.equal(value, before[name]), name
    model(X + 5)
    assert all(
        not torch.equal(net.state_dict()[name], before[name]) for name, _ in net.named_buffers()
    )


def test_an_earlier_pass_can_still_go_backward():
    model = DataParallel(Raising(0).eval(), ["cpu"] * 2)
    earlier = model(torch.ones(4, 3))
    with pytest.raises(KeyError):
        model(torch.zeros(4, 3))
    earlier.sum().backward()
    assert model.norm.weight.grad is not None
