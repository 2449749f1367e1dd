"""Derivatives of derivatives, several at once, forward ones, and those that functions compute."""

import copy

import pytest
import torch
from models import CLASSES, Changed, assert_same_gradients, batch, made
from torch import nn
from torch.utils.checkpoint import checkpoint

from fastreduce import DataParallel


class Adjoint(torch.autograd.Function):
    """Keeps ``run``, a module or its forward, and runs it again in its backward pass."""

    @staticmethod
    def forward(ctx, run, x, *parameters):
        ctx.run = run
        ctx.save_for_backward(x, *parameters)
        return run(x)

    @staticmethod
    def backward(ctx, grad):
        x, *parameters = ctx.saved_tensors
        inputs = x.detach().requires_grad_()
        with torch.enable_grad():
            y = ctx.run(inputs)
        if not parameters:  # they get their gradients directly
            y.backward(grad)
            return None, inputs.grad
        return None, *torch.autograd.grad(y, (inputs, *parameters), grad, allow_unused=True)


def adjoint(run, takes_parameters):
    """A model that calls `Adjoint` with what ``run`` makes of it."""

    def change(net, x):
        net.calls.add_(1)
        parameters = net.last.parameters() if takes_parameters else ()
        return Adjoint.apply(run(net), x, *parameters)

    net = Changed(change).double()
    net.last = nn.Linear(8, 8).double()
    net.register_buffer("calls", torch.zeros(()))
    return net


REFUSED = {
    "a module": lambda net: net.last,
    "a method of one": lambda net: net.last.forward,
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_function_that_asks_a_module_again_for_gradients_of_what_it_took_is_refused(name):
    X, _ = batch()
    net = adjoint(REFUSED[name], takes_parameters=True)
    model = DataParallel(net, ["cpu"] * 2)
    for step in (lambda: model(X), lambda: model.backward(lambda y: y.sum(), X)):
        with pytest.raises(ValueError, match=r"forward has called Adjoint, .*such as torchdiffeq"):
            step()
    assert net.calls == 0
    with torch.no_grad():
        model(X)
    DataParallel(net, ["cpu"])(X).sum().backward()  # one replica is the bare module


def check(bare):
    model = DataParallel(copy.deepcopy(bare), ["cpu"] * 2)
    X, _ = batch()
    for net in (bare, model):
        net(X).square().sum().backward()
    assert_same_gradients(model, bare)


@pytest.mark.parametrize(
    ("run", "takes_parameters"),
    [
        (REFUSED["a module"], False),
        (lambda net: torch.tanh, True),
    ],
    ids=["backward in backward", "no module"],
)
def test_other_functions_give_the_gradients_of_the_bare_module(run, takes_parameters):
    check(adjoint(run, takes_parameters))


def test_reentrant_checkpoints_that_take_parameters_give_those_of_the_bare_module():
    class Part(nn.Module):
        def forward(self, x):
            return checkpoint(self.part, self.layer(x), self.layer.weight, use_reentrant=True)

        def part(self, x, weight):
            return torch.tanh(self.layer(x @ weight))

    bare = Part()
    bare.layer = nn.Linear(6, 6).double()
    check(bare)


def test_derivatives_of_derivatives():
    bare = made("mlp")
    model = DataParallel(copy.deepcopy(bare), ["cpu"] * 2)
    X, _ = batch()
    for net in (bare, model):
        inputs = X.clone().requires_grad_()
        (slope,) = torch.autograd.grad(net(inputs).square().sum(), inputs, create_graph=True)
        slope.square().sum().backward()
    assert_same_gradients(model, bare)


def test_parameter_gradients_that_are_differentiated_again():
    bare = made("mlp")
    model = DataParallel(copy.deepcopy(bare), ["cpu"] * 2)
    X, _ = batch()
    for net in (bare, model):
        parameters = list(net.parameters())
        slopes = torch.autograd.grad(net(X).square().mean(), parameters, create_graph=True)
        sum(slope.square().sum() for slope in slopes).backward()
    assert_same_gradients(model, bare)


def test_several_gradients_at_once():
    bare = made("mlp")
    model = DataParallel(copy.deepcopy(bare), ["cpu"] * 2)
    X, _ = batch()
    found, wanted = (
        torch.autograd.grad(
            net(X),
            list(net.parameters()),
            torch.eye(7 * CLASSES, dtype=X.dtype).view(-1, 7, CLASSES),
            is_grads_batched=True,
        )
        for net in (model, bare)
    )
    for ours, theirs in zip(found, wanted, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)


def test_forward_differentiation_of_inputs_and_not_of_parameters():
    bare = made("mlp")
    model = DataParallel(copy.deepcopy(bare), ["cpu"] * 2)
    X, _ = batch()
    found, wanted = (torch.func.jvp(net, (X,), (X.sin(),))[1] for net in (model, bare))
    torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-10)
    params = {name: parameter.detach() for name, parameter in bare.named_parameters()}
    with pytest.raises(NotImplementedError, match="found a parameter with a tangent"):
        torch.func.jvp(lambda p: torch.func.functional_call(model, p, (X,)), (params,), (params,))


def test_parameters_that_are_results():
    """One step of model-agnostic meta-learning, through torch.func.functional_call."""
    bare = made("mlp")
    model = DataParallel(copy.deepcopy(bare), ["cpu"] * 2)
    (X, _), (more, _) = batch(7), batch(5)
    for net in (bare, model):
        params = dict(net.named_parameters())
        slopes = torch.autograd.grad(net(X).square().mean(), params.values(), create_graph=True)
        moved = {name: p - 0.1 * g for (name, p), g in zip(params.items(), slopes, strict=True)}
        torch.func.functional_call(net, moved, (more,)).square().mean().backward()
    assert_same_gradients(model, bare)
