"""How gradients of replicas are summed: in which memory, in which buckets, to which bits."""

import copy

import pytest
import torch
import torch.nn.functional as F
from models import assert_same_gradients, batch, made
from torch import nn

from fastreduce import DataParallel


def test_k_replicas_on_one_device_have_one_copy_of_the_parameters():
    model = DataParallel(made("mlp"), ["cpu"] * 4)
    replicas = model._parallel.replicas
    pointers = {parameter.data_ptr() for parameter in model.parameters()}
    model(batch()[0])
    for module in replicas.modules[1:]:
        for slot in module.modules():
            found = {p.data_ptr() for p in slot._parameters.values() if p is not None}
            assert found <= pointers


@pytest.mark.parametrize("k", [2, 4])
def test_the_sum_of_the_replicas_has_the_bits_of_the_loop(k):
    bare = made("mlp")
    model = DataParallel(copy.deepcopy(bare), ["cpu"] * k)
    X, y = batch(8)
    model.backward(F.cross_entropy, X, y)
    shards = zip(X.split(8 // k), y.split(8 // k), strict=True)
    losses = [F.cross_entropy(bare(X_shard), y_shard) / k for X_shard, y_shard in shards]
    per_shard = [torch.autograd.grad(loss, list(bare.parameters())) for loss in losses]
    for i, parameter in enumerate(model.parameters()):
        total = per_shard[0][i].clone()
        for gradients in per_shard[1:]:
            total += gradients[i]
        assert torch.equal(parameter.grad, total)


def test_gradients_are_summed_where_autograd_has_put_them():
    model = DataParallel(made("mlp"), ["cpu"] * 3)
    X, y = batch()
    for _ in range(3):  # the first shows the order of the buckets
        model.zero_grad()
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            model.backward(F.cross_entropy, X, y)
    names = [event.key for event in profile.key_averages()]
    assert "SumOfReplicas, bucket 0" in names and "aten::clone" not in names


class Added(nn.Module):
    """Autograd gives both parameters the same gradient, in one memory."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = (nn.Parameter(torch.ones(6).double()) for _ in range(2))

    def forward(self, x):
        return x * (self.one + self.two)


def test_gradients_that_share_memory():
    bare, model = Added(), DataParallel(Added(), ["cpu"] * 3)
    X, _ = batch()
    for _ in range(3):
        for net in (bare, model):
            net(X).square().sum().backward()
    assert_same_gradients(model, bare)


class LookedUp(nn.Module):
    """The gradient of its table is sparse where rows are looked up, else dense."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.ones(5, 2).double())

    def forward(self, x):
        if x.min() < 0:
            return x * self.table.sum()
        return F.embedding(x, self.table, sparse=True).sum(-1)


@pytest.mark.parametrize("rows", [[0, -1], [-1, 0], [-1, 0, 0, -1]])
def test_a_gradient_that_is_sparse_on_some_replicas_alone(rows):
    bare, model = LookedUp(), DataParallel(LookedUp(), ["cpu"] * len(rows))
    for _ in range(3):
        for row in rows:
            bare(torch.tensor([row])).sum().backward()
        model(torch.tensor(rows)).sum().backward()
    assert_same_gradients(model, bare)


class Backwards(nn.Module):
    """Uses its layers in another order than it has them in."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(6, 6) for _ in range(4))

    def forward(self, x):
        for number in (2, 0, 3, 1):
            x = self.layers[number](x).tanh()
        return x


def test_buckets_follow_the_order_in_which_gradients_come(monkeypatch):
    monkeypatch.setattr("fastreduce.parallel.buckets.FIRST_BUCKET_BYTES", 1)
    monkeypatch.setattr("fastreduce.parallel.buckets.BUCKET_BYTES", 1)
    bare = Backwards().double()
    model = DataParallel(copy.deepcopy(bare), ["cpu"] * 2)
    for net in (bare, model, bare, model):
        net(batch()[0]).square().sum().backward()
    layers = [number // 2 for (number,) in model._parallel.replicas._buckets.numbers]
    assert layers == [1, 1, 3, 3, 0, 0, 2, 2]
    assert_same_gradients(model, bare)


def test_without_overlap_all_gradients_are_summed_at_once_to_the_same_bits(monkeypatch):
    monkeypatch.setattr("fastreduce.parallel.buckets.FIRST_BUCKET_BYTES", 1)
    monkeypatch.setattr("fastreduce.parallel.buckets.BUCKET_BYTES", 1)
    found = {}
    for overlap in (True, False):
        model = DataParallel(made("mlp"), ["cpu"] * 2, overlap=overlap)
        for _ in range(3):
            model.zero_grad()
            model.backward(F.cross_entropy, *batch())
        found[overlap] = [p.grad for p in model.parameters()]
        sums = len(model._parallel.replicas._buckets.numbers)
        assert sums == (len(found[overlap]) if overlap else 1)
    assert all(map(torch.equal, found[True], found[False]))
