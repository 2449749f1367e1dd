"""The gradient is that of the whole batch on one device, whatever the split."""

import copy
from collections import UserDict
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from models import CLASSES, KEEPING_RESULTS, MODELS, assert_same_gradients, batch, made
from torch import nn

from fastreduce import DataParallel
from fastreduce.parallel import dealer
from fastreduce.parallel.replicas import Replicas


def token_weighted(logits, y):
    kept = y % 2 == 0
    return F.cross_entropy(logits[kept], y[kept], reduction="sum"), kept.sum()


def whole_token_weighted(logits, y):
    total, weight = token_weighted(logits, y)
    return total / weight


LOSSES = {
    "mean": (F.cross_entropy, F.cross_entropy),
    "sum": (nn.CrossEntropyLoss(reduction="sum"), nn.CrossEntropyLoss(reduction="sum")),
    "token-weighted": (token_weighted, whole_token_weighted),
}


@pytest.mark.parametrize("share", [True, False], ids=["one memory", "copies"])
@pytest.mark.parametrize("k", [1, 2, 3, 4])
@pytest.mark.parametrize("name", MODELS)
def test_outputs_and_gradients_of_a_gathered_loss(name, k, share):
    bare = made(name)
    model = DataParallel(copy.deepcopy(bare), ["cpu"] * k)
    model._parallel.replicas = Replicas(model.module, model.devices, share=share)
    X, y = batch()
    wanted, found = bare(X), model(X)
    torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-10)
    F.cross_entropy(wanted, y).backward()
    F.cross_entropy(found, y).backward()
    assert_same_gradients(model, bare)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("name", MODELS)
def test_gradients_of_a_loss_per_shard(name, loss):
    bare = made(name)
    model = DataParallel(copy.deepcopy(bare), ["cpu"] * 3)
    X, y = batch()
    per_shard, whole = LOSSES[loss]
    wanted = whole(bare(X), y)
    wanted.backward()
    found = model.backward(per_shard, X, y)
    torch.testing.assert_close(found, wanted.detach(), rtol=1e-10, atol=1e-10)
    assert_same_gradients(model, bare)


@pytest.mark.filterwarnings("ignore:.*weight_norm. is deprecated")
@pytest.mark.parametrize("name", KEEPING_RESULTS)
def test_modules_that_keep_results_of_a_forward_pass(name):
    nets = []
    for _ in range(2):  # not by copy.deepcopy, which such modules do not have
        torch.manual_seed(0)
        nets.append(KEEPING_RESULTS[name]().double())
    bare, wrapped = nets
    model = DataParallel(wrapped, ["cpu"] * 3)
    X, y = batch()
    for _ in range(2):
        F.cross_entropy(bare(X), y).backward()
        model.backward(F.cross_entropy, X, y)
        assert_same_gradients(model, bare)
        for net in (bare, model):  # makes new copies necessary
            next(net.parameters()).requires_grad_(False)
            net.zero_grad()


@given(
    rows=st.integers(1, 12),
    k=st.integers(1, 5),
    shares=st.none() | st.lists(st.floats(0.1, 10), min_size=5, max_size=5),
    accumulated=st.integers(1, 3),
)
def test_any_split_of_any_batch(rows, k, shares, accumulated):
    bare = made("mlp")
    model = DataParallel(copy.deepcopy(bare), ["cpu"] * k, shares=shares and shares[:k])
    X, y = batch(rows)
    for _ in range(accumulated):
        F.cross_entropy(bare(X), y).backward()
        model.backward(F.cross_entropy, X, y)
    assert_same_gradients(model, bare)


def test_control_means_of_uneven_shards_are_not_the_mean():
    bare = made("mlp")
    model = DataParallel(copy.deepcopy(bare), ["cpu"] * 3)
    X, y = batch()
    F.cross_entropy(bare(X), y).backward()
    model.backward(lambda logits, y: (F.cross_entropy(logits, y), 1), X, y)
    with pytest.raises(AssertionError):
        assert_same_gradients(model, bare)


@pytest.mark.parametrize("share", [True, False], ids=["one memory", "copies"])
@pytest.mark.parametrize(
    "optimizer",
    [torch.optim.SGD, torch.optim.AdamW, partial(torch.optim.Adam, fused=True)],
    ids=["SGD", "AdamW", "fused Adam"],  # a fused step leaves the version counters as they were
)
def test_replicas_follow_the_optimizer(optimizer, share):
    bare = made("mlp")
    model = DataParallel(copy.deepcopy(bare), ["cpu"] * 3)
    model._parallel.replicas = Replicas(model.module, model.devices, share=share)
    ours = optimizer(model.parameters(), lr=0.1)
    theirs = optimizer(bare.parameters(), lr=0.1)
    for rows in (7, 2, 12):
        X, y = batch(rows)
        for net, opt in ((bare, theirs), (model, ours)):
            opt.zero_grad()
            F.cross_entropy(net(X), y).backward()
            nn.utils.clip_grad_norm_(net.parameters(), 0.1)
            opt.step()
    for found, wanted in zip(model.parameters(), bare.parameters(), strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-10)


def test_one_backward_of_two_forwards():
    bare = made("mlp")
    model = DataParallel(copy.deepcopy(bare), ["cpu"] * 2)
    for net in (bare, model):
        (net(batch(5)[0]).sum() + net(batch(6)[0]).square().sum()).backward()
    assert_same_gradients(model, bare)


def test_accumulation_with_no_sync_nested_or_not():
    bare = made("mlp")
    model = DataParallel(copy.deepcopy(bare), ["cpu"] * 2)
    batches = [batch(rows) for rows in (5, 6, 7)]
    for X, y in batches:
        F.cross_entropy(bare(X), y).backward()
    with model.no_sync():
        model.backward(F.cross_entropy, *batches[0])
        with model.no_sync():
            model.backward(F.cross_entropy, *batches[1])
    model.backward(F.cross_entropy, *batches[2])
    assert_same_gradients(model, bare)


@pytest.mark.parametrize("rows", [1, 3, 7])
def test_a_batch_smaller_than_the_micro_shards(rows):
    bare = made("mlp")
    model = DataParallel(copy.deepcopy(bare), ["cpu"] * 2, reproducible=8)
    X, y = batch(rows)
    F.cross_entropy(bare(X), y).backward()
    model.backward(F.cross_entropy, X, y)
    assert_same_gradients(model, bare)


def test_under_autocast():
    torch.manual_seed(0)
    bare = nn.Linear(6, CLASSES)
    model = DataParallel(copy.deepcopy(bare), ["cpu"] * 2)
    X = torch.randn(8, 6)
    for net in (bare, model):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            found = net(X)
        assert found.dtype == torch.bfloat16
        found.float().square().mean().backward()
    assert_same_gradients(model, bare, tolerance=2e-2)


def test_gradients_get_the_users_hooks_once():
    model = DataParallel(made("mlp"), ["cpu"] * 3)
    seen = []
    weight = next(model.parameters())
    weight.register_hook(lambda gradient: seen.append(gradient.clone()))
    X, y = batch()
    model.backward(F.cross_entropy, X, y)
    assert len(seen) == 1 and torch.equal(seen[0], weight.grad)


def test_a_grad_scaler_skips_the_step_of_an_infinite_gradient():
    model = DataParallel(nn.Linear(6, CLASSES), ["cpu"] * 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    X = torch.randn(8, 6)
    before = model.weight.detach().clone()
    X[-1, 0] = torch.inf  # in the second replica's shard only
    scaler.scale(model(X).square().mean()).backward()
    scaler.step(optimizer)
    scaler.update()
    assert torch.equal(model.weight, before) and scaler.get_scale() == 2.0
    optimizer.zero_grad()
    scaler.scale(model(X[:-1]).square().mean()).backward()
    scaler.step(optimizer)
    assert not torch.equal(model.weight, before)


class WithLoss(nn.Linear):
    """As many language models: the loss is among the outputs."""

    def forward(self, X, labels):
        logits = super().forward(X)
        return {"logits": logits, "loss": F.cross_entropy(logits, labels)}


def test_a_loss_among_the_outputs():
    bare = WithLoss(6, CLASSES).double()
    model = DataParallel(copy.deepcopy(bare), ["cpu"] * 3)
    X, y = batch()
    bare(X, y)["loss"].backward()
    for mapping in (dict, UserDict):
        model.zero_grad()
        model.backward(lambda out: out["loss"], mapping({"X": X, "labels": y}))
        assert_same_gradients(model, bare)


def test_the_mean_over_the_batch_of_a_divergence():
    net = made("mlp")
    X, _ = batch(7)
    rows = torch.full((7, 5), 0.2, dtype=torch.float64)
    loss = nn.KLDivLoss(reduction="batchmean")
    model = DataParallel(copy.deepcopy(net), ["cpu"] * 3)
    found = model.backward(
        lambda out, y: loss(out.log_softmax(1), y), X, rows, reduction="batchmean"
    )
    wanted = loss(net(X).log_softmax(1), rows)
    wanted.backward()
    torch.testing.assert_close(found, wanted.detach())
    assert_same_gradients(model, net)
    logs = nn.Sequential(copy.deepcopy(net), nn.LogSoftmax(1))
    torch.testing.assert_close(DataParallel(logs, ["cpu"] * 3).backward(loss, X, rows), found)


def test_a_loss_of_outputs_that_cannot_be_joined():
    """Those of a tagger are as long as the longest sentence of the shard."""

    class Tagger(nn.Linear):
        def forward(self, x, lengths):
            return super().forward(x[:, : int(lengths.max())])

    def loss(out, tags, lengths):
        kept = torch.arange(out.shape[1]) < lengths[:, None]
        each = F.cross_entropy(out.mT, tags[:, : out.shape[1]], reduction="none")
        return ((each * kept).sum(1) / lengths).mean()

    X, tags = torch.randn(6, 7, 4, dtype=torch.float64), torch.arange(42).view(6, 7) % 3
    lengths = torch.tensor([2, 3, 7, 5, 1, 4])
    net = Tagger(4, 3).double()
    model = DataParallel(copy.deepcopy(net), ["cpu"] * 3)
    model.backward(loss, (X, lengths), tags, lengths)
    loss(net(X, lengths), tags, lengths).backward()
    assert_same_gradients(model, net)


def test_each_loss_function_is_compared_with_that_of_the_whole_batch_once():
    model = DataParallel(made("mlp"), ["cpu"] * 2)
    X, y = batch()
    calls = []

    def counted(logits, labels):
        calls.append(len(labels))
        return F.cross_entropy(logits, labels)

    for _ in range(2):
        model.backward(lambda logits, labels: counted(logits, labels), X, y)
    assert calls == [4, 3, 7, 4, 3]
    before = model[0].weight.grad.clone()
    with pytest.raises(ValueError, match="so it is not their mean over examples"):
        model.backward(lambda logits, labels: logits.sum(), X, y)
    assert torch.equal(model[0].weight.grad, before)


class Scaled:
    def __init__(self, ignored):
        self.ignored = ignored

    def loss(self, logits, labels):
        return F.cross_entropy(logits, labels, ignore_index=self.ignored)


class Counting:
    def __init__(self):
        self.steps, self.wholes = 0, 0

    def loss(self, logits, labels):
        self.steps += 1
        self.wholes += len(labels) == 7
        return F.cross_entropy(logits, labels)


def test_a_loss_function_that_counts_its_steps_is_not_compared_for_ever(monkeypatch):
    monkeypatch.setattr(dealer, "MOST_CHECKED", 3)
    model, counting = DataParallel(made("mlp"), ["cpu"] * 2), Counting()
    for _ in range(10):
        model.backward(counting.loss, *batch())
    assert counting.wholes == 3


def closure(weight):
    return lambda logits, labels: F.cross_entropy(logits, labels, weight=weight)


WEIGHT = torch.arange(1.0, CLASSES + 1).double()


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (nn.CrossEntropyLoss(), nn.CrossEntropyLoss(weight=WEIGHT)),
        (partial(F.cross_entropy), partial(F.cross_entropy, weight=WEIGHT)),
        (closure(None), closure(WEIGHT)),
        (Scaled(-100).loss, Scaled(int(batch()[1][0])).loss),
    ],
    ids=["modules", "partials", "closures", "methods"],
)
def test_another_loss_function_of_the_same_code_is_compared_too(first, second):
    model = DataParallel(made("mlp"), ["cpu"] * 2)
    X, y = batch()
    model.backward(first, X, y)
    with pytest.raises(ValueError, match="so it is not their mean over examples"):
        model.backward(second, X, y)
