"""Ctrl-C at bad moments: the module is as it was, and the next step is right."""

import time

import pytest
import torch
from torch import nn

from fastreduce import DataParallel
from fastreduce.parallel.attributes import Attributes
from fastreduce.parallel.worker import Worker

SMALL, LARGE = 8, 2048  # batches of which shards run one by one, and at the same time


class Slow(nn.Linear):
    def forward(self, x):
        time.sleep(0.1)
        return super().forward(x)


@pytest.fixture
def interrupt(monkeypatch):
    """Raise KeyboardInterrupt in the next call of a method, after what it does or instead."""

    def once(kind, name, does=True):
        method = getattr(kind, name)

        def interrupted(*args):
            monkeypatch.setattr(kind, name, method)
            if does:
                method(*args)
                time.sleep(0.05)
            raise KeyboardInterrupt

        monkeypatch.setattr(kind, name, interrupted)

    return once


@pytest.mark.parametrize("rows", [SMALL, LARGE])
@pytest.mark.parametrize("last", ["norm", "slow"])
def test_when_a_thread_has_just_been_given_its_shard(interrupt, rows, last):
    layer = nn.BatchNorm1d(64) if last == "norm" else Slow(64, 64)
    net = nn.Sequential(nn.Linear(128, 64), layer)
    model = DataParallel(net, ["cpu", "cpu"], sync_batchnorm=last == "norm")
    X, own = torch.randn(rows, 128), list(net.parameters())
    model(X)
    if last == "slow" and rows == SMALL:
        return  # one by one no thread is needed
    interrupt(Worker, "submit")
    with pytest.raises(KeyboardInterrupt):
        model(X)
    assert all(one is other for one, other in zip(net.parameters(), own, strict=True))
    model(X).sum().backward()
    assert all(one is other for one, other in zip(net.parameters(), own, strict=True))
    assert net[0].weight.is_leaf and net[0].weight.grad is not None


@pytest.mark.parametrize("rows", [SMALL, LARGE])
def test_at_the_end_of_forward(interrupt, rows):
    net = nn.Linear(64, 2)
    model, X = DataParallel(net, ["cpu", "cpu"]), torch.randn(rows, 64)
    wanted = model(X)
    interrupt(Attributes, "keep", does=False)
    with pytest.raises(KeyboardInterrupt):
        model(X)
    assert torch.equal(model(X), wanted)


def test_parameters_that_are_refused_do_not_stay():
    net = nn.Linear(3, 2)
    model, own, X = DataParallel(net, ["cpu", "cpu"]), net.weight, torch.randn(4, 3)
    wanted = model(X)
    with torch.inference_mode():
        others = {name: torch.full_like(p, 7.0) for name, p in model.named_parameters()}
    for _ in range(2):
        with pytest.raises(ValueError, match="inference"):
            torch.func.functional_call(model, others, X)
        assert torch.equal(model(X), wanted)
        assert net.weight is own
