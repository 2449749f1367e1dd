"""Loss functions that `model.backward` takes, and their comparison with that of the whole batch."""

import copy
import warnings
from collections import UserDict
from contextlib import contextmanager
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from models import CLASSES, assert_same_gradients, batch, made
from torch import nn

from fastreduce import DataParallel
from fastreduce.parallel import dealer


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
        with warnings_of(mapping is dict):
            model.backward(lambda out: out["loss"], mapping({"X": X, "labels": y}))
        assert_same_gradients(model, bare)


@contextmanager
def warnings_of(expected):
    """That a loss could not be compared; once if expected, else not."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        yield
    assert ["the loss of the whole batch is not known" in str(x.message) for x in found] == [
        True
    ] * expected


def contrastive(out):
    logits = out["one"] @ out["other"].T
    return F.cross_entropy(logits, torch.arange(len(logits)))


def test_a_loss_that_could_not_be_compared_is_compared_later():
    """Outputs of equal shards can be joined."""

    class Pairs(nn.Linear):
        def forward(self, X):
            found = super().forward(X)
            return {"one": found, "other": found, "logits": found @ found.T}

    model = DataParallel(Pairs(4, 4), ["cpu"] * 2)
    for expected in (True, False):
        with warnings_of(expected):
            model.backward(contrastive, torch.eye(7, 4))
    before = model.weight.grad.clone()
    with pytest.raises(ValueError, match="so it is not their mean over examples"):
        model.backward(contrastive, torch.eye(8, 4))
    assert torch.equal(model.weight.grad, before)


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
    with warnings_of(True):
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
