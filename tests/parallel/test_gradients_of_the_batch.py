"""The gradient is that of the whole batch on one device, whatever the split."""

import copy
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from models import CLASSES, KEEPING_RESULTS, MODELS, Embedded, assert_same_gradients, batch, made
from torch import nn

from fastreduce import DataParallel
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
    model._parallel.use(Replicas(model.module, model.devices, share=share))
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


@pytest.mark.parametrize("k", [1, 2, 4])
def test_an_embedding_whose_rows_forward_shortens(k):
    bare = Embedded(max_norm=0.5).double()
    model = DataParallel(copy.deepcopy(bare), ["cpu"] * k)
    X, y = batch()
    F.cross_entropy(bare(X), y).backward()
    model.backward(F.cross_entropy, X, y)
    assert_same_gradients(model, bare)
    assert torch.equal(model.table.weight, bare.table.weight)


def test_a_copy_whose_rows_forward_shortens_is_refused():
    model = DataParallel(Embedded(max_norm=0.5).double(), ["cpu"] * 2)
    model._parallel.use(Replicas(model.module, model.devices, share=False))
    model.eval()
    with pytest.raises(ValueError, match=r"written to parameter table\.weight.*max_norm, too"):
        model(batch()[0])


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
    model._parallel.use(Replicas(model.module, model.devices, share=share))
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
