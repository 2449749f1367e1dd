"""A method of the model may be replaced, as Accelerate does for mixed precision."""

import copy
from types import MethodType

import pytest
import torch
from models import assert_same_gradients
from torch import nn

from fastreduce import DataParallel

X = torch.linspace(-1, 1, 14, dtype=torch.float64).view(7, 2)


def cubed(forward):
    def changed(self, *args):
        return forward(self, *args) ** 3

    return changed


def replace(model):
    """In two steps, which keep what was there before."""
    model._original_forward = model.forward
    model.forward = MethodType(cubed(model.forward.__func__), model)
    model.forward = MethodType(lambda self, x, f=model.forward.__func__: f(self, x) * 2, model)


@pytest.mark.parametrize("after", [False, True], ids=["at first", "after a pass"])
@pytest.mark.parametrize("copied", [False, True], ids=["", "copied"])
def test_each_replica_calls_it(after, copied):
    net = nn.Linear(2, 3).double()
    model = DataParallel(copy.deepcopy(net), ["cpu"] * 3)
    if after:
        model(X)
    replace(net)
    replace(model)
    model = copy.deepcopy(model) if copied else model
    for either in (net, model):
        y = either(X)
        y.square().sum().backward()
    torch.testing.assert_close(y, net(X), rtol=1e-12, atol=1e-12)
    assert_same_gradients(model, net)


def test_it_can_be_put_back():
    net = nn.Linear(2, 3).double()
    model = DataParallel(copy.deepcopy(net), ["cpu"] * 3)
    replace(model)
    assert not torch.equal(model(X), net(X))
    original, forward = vars(model).pop("_original_forward"), model.forward
    assert forward != original
    model.forward = MethodType(original.__func__, model)
    assert torch.equal(model(X), net(X))


def test_another_method_is_the_modules_own():
    class Scaled(nn.Linear):
        def scale(self, y):
            return y

        def forward(self, x):
            return self.scale(super().forward(x)) * len(self.seen)

    model = DataParallel(Scaled(2, 3).double(), ["cpu"] * 2)
    model.seen = [1, 2]
    model.scale = MethodType(lambda self, y: y * self.out_features, model)
    assert torch.equal(model(X), nn.functional.linear(X, model.weight, model.bias) * 3 * 2)
