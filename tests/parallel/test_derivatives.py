"""Derivatives of derivatives, several at once, forward ones, and parameters that are results."""

import copy

import pytest
import torch
from models import CLASSES, assert_same_gradients, batch, made

from fastreduce import DataParallel


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
