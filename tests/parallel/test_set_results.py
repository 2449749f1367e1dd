"""Tensors with a graph that are set as an attribute: all replicas use them and give gradients."""

import copy
import warnings

import pytest
import torch
import torch.nn.functional as F
from models import CLASSES, FEATURES, assert_same_gradients, batch
from torch import nn

from fastreduce import DataParallel

SIZE = CLASSES * FEATURES


class Weighted(nn.Module):
    def __init__(self, weight=None):
        super().__init__()
        self.bias, self.weight = nn.Parameter(torch.zeros(CLASSES, dtype=torch.float64)), weight

    def forward(self, x):
        return F.linear(x, self.weight, self.bias)


class Parts(Weighted):
    """Its weight and its bias are parts of one parameter."""

    def __init__(self):
        super().__init__()
        self.flat = nn.Parameter(torch.linspace(-1, 1, SIZE + CLASSES, dtype=torch.float64))
        del self.bias
        self.weight = self.flat[:SIZE].view(CLASSES, FEATURES)
        self.bias = self.flat[SIZE:]


def trained(model, per_shard=False, set_weight=lambda: None):
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    X, y = batch()
    for _ in range(3):
        set_weight()
        optimizer.zero_grad()
        if per_shard:
            model.backward(F.cross_entropy, X, y)
        else:
            F.cross_entropy(model(X), y).backward()
        optimizer.step()
    return model


@pytest.mark.parametrize("per_shard", [False, True], ids=["joined", "per shard"])
@pytest.mark.parametrize("k", [1, 2, 3])
def test_parts_of_a_parameter_train_as_in_the_bare_module(k, per_shard):
    bare = trained(Parts())
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # forward has set nothing
        model = trained(DataParallel(Parts(), ["cpu"] * k), per_shard)
    torch.testing.assert_close(model.flat, bare.flat, rtol=1e-10, atol=1e-10)
    assert_same_gradients(model, bare)


@pytest.mark.parametrize("first", [None, torch.zeros(CLASSES, FEATURES, dtype=torch.float64)])
@pytest.mark.parametrize("k", [1, 2, 3])
def test_weights_that_another_network_makes_before_each_pass(k, first):
    of_bare = nn.Linear(2, SIZE, dtype=torch.float64)
    of_ours = copy.deepcopy(of_bare)

    def setting(model, maker):
        ones = torch.ones(2, dtype=torch.float64)
        return lambda: setattr(model, "weight", maker(ones).view(CLASSES, FEATURES))

    bare, model = Weighted(first), DataParallel(Weighted(first), ["cpu"] * k)
    trained(bare, set_weight=setting(bare, of_bare))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trained(model, set_weight=setting(model, of_ours))
    assert_same_gradients(model, bare)
    assert_same_gradients(of_ours, of_bare)


def test_it_is_set_in_a_pass_without_gradients():
    model = DataParallel(Weighted(), ["cpu"] * 2)
    weight = torch.ones(CLASSES, FEATURES, dtype=torch.float64, requires_grad=True)
    model.weight = weight * 1
    X, _ = batch(4)
    with torch.no_grad():
        model(X)
    model(X).sum().backward()
    torch.testing.assert_close(weight.grad, X.sum(0).expand(CLASSES, FEATURES))
