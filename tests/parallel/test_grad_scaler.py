"""model.backward with a GradScaler: a loss that is not finite skips the step and raises nothing."""

import copy
from contextlib import nullcontext

import pytest
import torch
import torch.nn.functional as F
from models import batch
from torch import nn

from fastreduce import DataParallel
from fastreduce.training import NonFiniteLoss

X, Y = (x.float() if x.is_floating_point() else x for x in batch(6))


@pytest.fixture
def model():
    return DataParallel(nn.Linear(6, 5), ["cpu"] * 2)


def too_large():
    """Its first step is infinite, its second one is not."""
    return torch.amp.GradScaler("cpu", init_scale=3e38, backoff_factor=1e-36)


def loss_of(output, y, reduction="mean"):
    return 100 * F.cross_entropy(output, y, reduction=reduction)


LOSSES = {
    "float32": lambda scale, output, y: scale(loss_of(output, y)),
    "float16": lambda scale, output, y: scale(loss_of(output, y).half()),
    "sum and weight": lambda scale, output, y: (scale(loss_of(output, y, "sum")), len(y)),
}


@pytest.mark.parametrize("name", LOSSES)
def test_steps_are_those_of_the_bare_module(model, name):
    bare = copy.deepcopy(model.module)
    scalers = too_large(), too_large()
    optimizers = [torch.optim.SGD(net.parameters(), 0.01) for net in (model, bare)]
    for skipped in (True, False):
        before = model.weight.detach().clone()
        model.zero_grad()
        bare.zero_grad()
        loss = model.backward(lambda o, y: LOSSES[name](scalers[0].scale, o, y), X, Y)
        scalers[1].scale(loss_of(bare(X), Y)).backward()
        for scaler, optimizer in zip(scalers, optimizers, strict=True):
            scaler.step(optimizer)
            scaler.update()
        assert torch.equal(model.weight, before) == (not loss.isfinite()) == skipped
        torch.testing.assert_close(model.weight, bare.weight, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    "scaled",
    [lambda loss: loss * 1e39, lambda loss: loss / 0.0, lambda loss: loss * torch.tensor(1e39) + 0],
    ids=["by a number", "by a division", "not last"],
)
def test_other_losses_that_are_not_finite_raise(model, scaled):
    with pytest.raises(NonFiniteLoss, match="loss of shard 0 is inf"):
        model.backward(lambda output, y: scaled(loss_of(output, y)), X, Y)
    assert model.weight.grad is None


def scaled_mean(dtype, error):
    """Of shards of three rows and one: the loss of the smaller one is off by ``error``."""

    def loss_fn(output, y):
        loss = (output.sum() * 0 + 50 * (1 + error * (len(y) == 1))).to(dtype)
        return torch.tensor(1024.0) * loss

    return loss_fn


@pytest.mark.parametrize(
    ("dtype", "error"),
    [(torch.float32, 1e-3), (torch.float16, 1e-3), (torch.bfloat16, 1e-2), (torch.float16, 0.2)],
)
def test_a_scaled_loss_is_as_exact_as_before(dtype, error):
    """Rounding is no wrong mean, and what is more than rounding is one."""
    model = DataParallel(nn.Linear(6, 5), ["cpu"] * 2, shares=[3, 1])
    finds = dtype == torch.float32 or error > 0.1
    with pytest.raises(ValueError, match="the shards' make") if finds else nullcontext():
        model.backward(scaled_mean(dtype, 4 * error), X[:4], Y[:4])


def test_a_wrong_mean_is_found_as_soon_as_it_is_finite(model):
    optimizer, scaler = torch.optim.SGD(model.parameters(), 0.1), too_large()

    def loss_fn(output, y):
        return scaler.scale(loss_of(output, y, "sum"))

    model.backward(loss_fn, X, Y)
    scaler.step(optimizer)
    scaler.update()
    with pytest.raises(ValueError, match="the shards' make"):
        model.backward(loss_fn, X, Y)
