"""`model.graphed`, up to the CUDA graph itself: tests/gpu has the rest.

Here a capture runs the step once and a replay runs it again, as a graph does with its kernels.
"""

import copy
import gc

import pytest
import torch
import torch.nn.functional as F
from models import CLASSES, assert_same_gradients, batch, made
from torch import nn

import fastreduce
from fastreduce import DataParallel
from fastreduce.parallel import dealer, graphed
from fastreduce.parallel.graphed import GraphedStep
from fastreduce.parallel.update import Update


@pytest.fixture
def model(monkeypatch):
    """One whose steps can be graphed on the CPU; replays write where the capture wrote."""

    def captured(call, _):
        before = [(parameter, parameter.detach().clone()) for parameter in model.parameters()]
        loss = call()
        gradients = [parameter.grad for parameter in model.parameters()]
        with torch.no_grad():  # a capture runs no kernel
            for parameter, values in before:
                parameter.copy_(values)

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


def step_of(model, X, y, optimizer=None) -> GraphedStep:
    parallel = model._parallel

    def step(inputs, targets):
        return parallel.backward(F.cross_entropy, inputs, targets, None)

    parallel.replicas.forget_last_pass()
    update = Update(optimizer) if optimizer else None
    return GraphedStep(step, model.module, model.devices, (X, (y,)), update)


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


class TestGraphsOfEarlierPasses:
    """torch keeps for them on which stream gradients are accumulated: none that is captured."""

    @pytest.mark.parametrize("sync_batchnorm", [False, True])
    @pytest.mark.parametrize("kind", ["mlp", "branching", "checkpoint"])
    def test_none_is_left_by_a_pass_that_is_forgotten(self, kind, sync_batchnorm):
        model = DataParallel(made(kind), ["cpu"] * 3, sync_batchnorm=sync_batchnorm)
        X, y = batch()
        gc.disable()  # which would hide a graph that waits for it
        try:
            for _ in range(3):
                model.backward(F.cross_entropy, X, y)
                F.cross_entropy(model(X), y).backward()
                model._parallel.replicas.forget_last_pass()
                graphed._check_that_no_graph_holds(model.module)
        finally:
            gc.enable()

    def test_one_that_is_held_is_an_error_in_words(self, model):
        X, y = batch()
        output = model(X)
        with pytest.raises(RuntimeError, match=r"leads to 0\.weight; delete what holds"):
            step_of(model, X, y)
        del output
        step_of(model, X, y)

    def test_garbage_is_collected(self, model):
        X, y = batch()
        garbage = [model(X)]
        garbage.append(garbage)
        del garbage
        step_of(model, X, y)


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


class TestWithAnOptimizer:
    def test_each_call_takes_its_step(self, model):
        bare = copy.deepcopy(model.module)
        theirs = torch.optim.SGD(bare.parameters(), 0.1)
        step = step_of(model, X, Y, torch.optim.SGD(model.parameters(), 0.1))
        for other in (X, -X, X + 1):
            theirs.zero_grad()
            wanted = F.cross_entropy(bare(other), Y)
            wanted.backward()
            theirs.step()
            torch.testing.assert_close(step(other, Y), wanted.detach())
            assert_same_gradients(model, bare)
            torch.testing.assert_close(list(model.parameters()), list(bare.parameters()))

    def test_copies_on_other_devices_find_the_parameters_changed(self, model):
        """A replay writes without PyTorch's knowledge; here it writes nothing at all."""
        step = step_of(model, X, Y, torch.optim.SGD(model.parameters(), 0.1))
        step._replay = lambda: None
        before = [parameter._version for parameter in model.parameters()]
        step(X, Y)
        assert all(p._version > old for p, old in zip(model.parameters(), before, strict=True))

    def test_capturing_changes_neither_parameters_nor_state(self, model, monkeypatch):
        optimizer = stepped(model, torch.optim.SGD, lr=0.1, momentum=0.9)
        state = copy.deepcopy(optimizer.state_dict())
        before = copy.deepcopy(model.state_dict())
        monkeypatch.setattr(graphed, "captured", lambda call, _: (call, torch.zeros(())))
        step_of(model, X, Y, optimizer)
        assert_equal(optimizer.state_dict(), state)
        assert_equal(model.state_dict(), before)

    def test_a_state_that_its_first_step_makes(self, model):
        """In a graph that step would be repeated, as a first one, by each replay."""
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        before = copy.deepcopy(model.state_dict())
        with pytest.raises(ValueError, match=r"'momentum_buffer', .*call optimizer.step\(\) once"):
            step_of(model, X, Y, optimizer)
        assert not optimizer.state
        assert_equal(model.state_dict(), before)
        assert all(parameter.grad is None for parameter in model.parameters())

    def test_a_state_in_python_cannot_be_captured(self, model):
        class Counting(torch.optim.SGD):
            def step(self):
                for p in model.parameters():
                    self.state[p]["step"] = self.state[p].get("step", 0) + 1

        optimizer = stepped(model, Counting)
        with pytest.raises(ValueError, match="Counting, whose state 'step' is no tensor"):
            step_of(model, X, Y, optimizer)
        assert all(state == {"step": 1} for state in optimizer.state.values())

    def test_what_is_not_capturable(self, model):
        with pytest.raises(ValueError, match=r"found Adam with .*wanted capturable=True"):
            step_of(model, X, Y, torch.optim.Adam(model.parameters()))

    @pytest.mark.parametrize("lr", [0.1, torch.tensor(0.1)])
    def test_a_setting_that_has_changed(self, model, lr):
        optimizer = torch.optim.SGD(model.parameters(), lr)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
        step = step_of(model, X, Y, optimizer)
        step(X, Y)
        scheduler.step()
        before = copy.deepcopy(model.state_dict())
        with pytest.raises(RuntimeError, match=r"another lr \(group 0\) than when"):
            step(X, Y)
        assert_equal(model.state_dict(), before)

    def test_a_state_that_was_loaded(self, model):
        optimizer = stepped(model, torch.optim.SGD, lr=0.1, momentum=0.9)
        step = step_of(model, X, Y, optimizer)
        optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
        with pytest.raises(RuntimeError, match="SGD has another state than when"):
            step(X, Y)


def stepped(model, kind, **settings):
    """An optimizer that has taken a step."""
    optimizer = kind(model.parameters(), **settings)
    model.backward(F.cross_entropy, X, Y)
    optimizer.step()
    return optimizer


def assert_equal(found, wanted):
    torch.testing.assert_close(found, wanted, rtol=0, atol=0)


def test_on_the_cpu_there_is_no_graph():
    model = DataParallel(made("mlp"), ["cpu"] * 2)
    with pytest.raises(RuntimeError, match="replicas are on cpu, wanted GPUs"):
        model.graphed(F.cross_entropy, X, Y)


def test_no_loss_is_compared_in_a_capture(monkeypatch):
    """Which may not wait for the GPU; those of the steps before it may have been infinite."""
    compared = []
    monkeypatch.setattr(dealer, "compared", lambda *_: compared.append("waited"))
    model = DataParallel(made("mlp"), ["cpu"] * 2)
    for capturing in (False, True):
        monkeypatch.setattr(torch.cuda, "is_initialized", lambda now=capturing: now)
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda now=capturing: now)
        model.backward(F.cross_entropy, *batch())
    assert compared == ["waited"]
