"""`model.graphed`, up to the CUDA graph itself: tests/gpu has the rest.

Here a capture runs the step once and a replay runs it again, as a graph does with its kernels.
"""

import copy

import pytest
import torch
import torch.nn.functional as F
from models import CLASSES, batch, made
from test_gradients_of_the_batch import assert_same_gradients
from torch import nn

import fastreduce
from fastreduce import DataParallel
from fastreduce.parallel import graphed
from fastreduce.parallel.graphed import GraphedStep


@pytest.fixture
def model(monkeypatch):
    """One whose steps can be graphed on the CPU; replays write where the capture wrote."""

    def captured(call, _):
        loss = call()
        gradients = [parameter.grad for parameter in model.parameters()]

        def replay():
            for parameter in model.parameters():
                parameter.grad = None
            fresh = call()
            loss.copy_(fresh)
            for kept, parameter in zip(gradients, model.parameters(), strict=True):
                if kept is not None:
                    kept.copy_(parameter.grad)

        return replay, loss

    monkeypatch.setattr(graphed, "captured", captured)
    model = DataParallel(made("mlp"), ["cpu"] * 2)
    return model


def step_of(model, X, y) -> GraphedStep:
    parallel = model._parallel

    def step(inputs, targets):
        return parallel.backward(F.cross_entropy, inputs, targets, None)

    return GraphedStep(step, model.module, model.devices, (X, (y,)))


def test_each_call_sets_the_gradients_of_its_batch(model):
    bare = copy.deepcopy(model.module)
    X, y = batch()
    step = step_of(model, X, y)
    for other in (X, -X, X + 1):
        bare.zero_grad()
        wanted = F.cross_entropy(bare(other), y)
        wanted.backward()
        torch.testing.assert_close(step(other, y), wanted.detach())
        assert_same_gradients(model, bare)


def test_warming_up_changes_neither_buffers_nor_random_numbers():
    net = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, CLASSES))
    model = DataParallel(net, ["cpu"] * 2)
    X, y = torch.randn(8, 6), torch.arange(8) % CLASSES
    model.backward(F.cross_entropy, X, y)
    before = [buffer.clone() for buffer in net.buffers()]
    state = torch.get_rng_state()
    with graphed._unchanged(net, model.devices):
        for _ in range(3):
            model.backward(F.cross_entropy, X, y)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(x, y) for x, y in zip(before, net.buffers(), strict=True))


def test_gradients_from_before_stay(model):
    X, y = batch()
    model.backward(F.cross_entropy, X, y)
    before = [(parameter.grad, parameter.grad.clone()) for parameter in model.parameters()]
    step_of(model, -X, y)
    for parameter, (gradient, values) in zip(model.parameters(), before, strict=True):
        assert parameter.grad is gradient and torch.equal(gradient, values)


X, Y = batch()
WRONG_BATCHES = {
    "shorter": ((X[:3], Y[:3]), r"found a batch of float64\[3, 6\], int64\[3\]; wanted float64\[7"),
    "another dtype": ((X.float(), Y), r"found a batch of float32\[7, 6\]"),
    "built otherwise": (((X, X), Y), "found a batch of"),
    "no targets": ((X,), "found a batch of"),
}


@pytest.mark.parametrize("case", WRONG_BATCHES)
def test_another_kind_of_batch(model, case):
    batch_, words = WRONG_BATCHES[case]
    step = step_of(model, X, Y)
    kept = [parameter.grad for parameter in model.parameters()]
    with pytest.raises(ValueError, match=words):
        step(*batch_)
    assert [parameter.grad for parameter in model.parameters()] == kept


def test_parameters_that_have_moved(model):
    step = step_of(model, X, Y)
    model[0].weight = nn.Parameter(model[0].weight.detach().clone())
    with pytest.raises(RuntimeError, match=r"call model.graphed again"):
        step(X, Y)


def test_whole_arguments_are_refused(model):
    with pytest.raises(ValueError, match=r"found an argument that is fastreduce\.Whole"):
        step_of(model, fastreduce.Whole(X), Y)


def test_on_the_cpu_there_is_no_graph():
    model = DataParallel(made("mlp"), ["cpu"] * 2)
    with pytest.raises(RuntimeError, match="replicas are on cpu, wanted GPUs"):
        model.graphed(F.cross_entropy, X, Y)
