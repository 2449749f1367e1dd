"""Buffers that forward writes to from its shard's examples: the first shard's stay, and a warning
says so.
"""

import warnings

import pytest
import torch
from torch import nn

from fastreduce import DataParallel


class Keys(nn.Linear):
    """Keeps what it has computed, as MoCo its queue; ``write`` says how."""

    def __init__(self, write):
        super().__init__(3, 2)
        self.write = write
        self.register_buffer("queue", torch.zeros(4, 2))
        self.register_buffer("seen", torch.tensor(0))

    def forward(self, x):
        y = super().forward(x)
        self.write(self, y.detach())
        return y


def to_the_data(net, y):
    net.queue.data[: len(y)] = y  # which no version counter sees


def anew(net, y):
    net.queue = torch.cat([net.queue, y])


def counting(net, y):
    net.seen += len(y)


def model_of(net):
    return DataParallel(net, ["cpu", "cpu"], at_once=False)


@pytest.mark.parametrize(
    ("write", "name"), [(to_the_data, "queue"), (anew, "queue"), (counting, "seen")]
)
@pytest.mark.parametrize("training", [True, False])
def test_a_warning_names_the_buffer_once(write, name, training):
    model = model_of(nn.Sequential(Keys(write))).train(training)
    with pytest.warns(UserWarning, match=f"other values of buffer 0.{name} in each shard"):
        model(torch.randn(3, 3))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model(torch.randn(3, 3))


def test_several_are_counted():
    def both(net, y):
        to_the_data(net, y)
        counting(net, y)

    with pytest.warns(UserWarning, match=r"buffer queue \(and of 1 more\) in each shard"):
        model_of(Keys(both))(torch.randn(3, 3))


@pytest.mark.parametrize(
    "net",
    [
        Keys(lambda net, y: net.queue.fill_(1)),
        Keys(lambda net, y: net.queue.fill_(torch.nan)),
        Keys(lambda net, y: setattr(net, "queue", None)),
        nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)),
        nn.utils.spectral_norm(nn.Linear(3, 2)),
    ],
    ids=["a constant", "nan", "None", "BatchNorm", "spectral norm"],
)
def test_what_shards_write_alike_and_running_statistics_are_quiet(net):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model_of(net)(torch.randn(6, 3))


def test_a_child_that_forward_replaces():
    class Mask(nn.Module):
        def __init__(self, n):
            super().__init__()
            self.register_buffer("kept", torch.ones(n))

    class Masked(nn.Linear):
        def forward(self, x):
            self.mask = Mask(len(x))
            return super().forward(x) * self.mask.kept[:, None]

    net, x = Masked(3, 2), torch.randn(5, 3)
    net.mask = Mask(1)
    torch.testing.assert_close(model_of(net)(x), net(x))
