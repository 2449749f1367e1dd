"""With batch_dim=1 tensors are cut along their second dimension, vectors along their only one."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fastreduce import DataParallel, Whole

STEPS, FEATURES, CLASSES = 3, 6, 5


class Recurrent(nn.Module):
    """Takes (steps, examples, features), as torch's LSTM does by default."""

    def __init__(self, returns):
        super().__init__()
        self.lstm, self.returns = nn.LSTM(FEATURES, CLASSES), returns

    def forward(self, x, scale=1.0):
        return self.returns(self.lstm(x)[0] * scale)


OUTPUTS = {
    "of every step": lambda y: y,
    "of the last step": lambda y: y[-1],
    "one per example": lambda y: y[-1].sum(1),
}


def made(returns):
    torch.manual_seed(0)
    bare = Recurrent(OUTPUTS[returns]).double()
    return bare, DataParallel(copy.deepcopy(bare), ["cpu"] * 2, batch_dim=1)


def batch(rows):
    return torch.randn(STEPS, rows, FEATURES, dtype=torch.float64), torch.arange(rows) % CLASSES


def loss_of(y, labels):
    if y.dim() == 1:
        return F.mse_loss(y, labels.to(y))
    return F.cross_entropy(y if y.dim() == 2 else y.mean(0), labels)


@pytest.mark.parametrize("rows", [7, 8, 1])
@pytest.mark.parametrize("returns", OUTPUTS)
def test_labels_are_cut_as_the_batch_is(returns, rows):
    bare, model = made(returns)
    X, labels = batch(rows)
    loss_of(bare(X), labels).backward()
    model.backward(loss_of, X, labels)
    for ours, theirs in zip(model.parameters(), bare.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("returns", ["of every step", "one per example"])
def test_outputs_are_joined_where_the_batch_is(returns):
    bare, model = made(returns)
    X, _ = batch(7)
    torch.testing.assert_close(model(X), bare(X))


@pytest.mark.parametrize("rows", [7, 8])
def test_an_output_that_has_its_examples_elsewhere_is_refused(rows):
    _, model = made("of the last step")
    with pytest.raises(ValueError, match=r"shape \(4, 5\) for a shard of 4 .*movedim\(0, 1\)"):
        model(batch(rows)[0])


def test_a_vector_that_has_nothing_per_example_is_marked():
    bare, model = made("of every step")
    X, scale = batch(7)[0], torch.ones(CLASSES) * 2
    torch.testing.assert_close(model(X, Whole(scale)), bare(X, scale))
    with pytest.raises(ValueError, match=r"vectors along their only one.*7 in .*5 in .*Whole"):
        model(X, scale)


def test_examples_that_are_all_in_another_dimension_are_found():
    model = DataParallel(nn.LSTM(FEATURES, CLASSES, num_layers=2), ["cpu"] * 2)
    x, state = torch.randn(STEPS, 7, FEATURES), torch.randn(2, 7, CLASSES)
    with pytest.raises(ValueError, match=r"All have 7 in dimension 1: .*batch_dim=1"):
        model(x, (state, state))
    with pytest.raises(ValueError, match="different numbers") as error:
        model(x, (state[:, :6], state))
    assert "batch_dim=" not in str(error.value)


@pytest.mark.parametrize("rows", [7, 6])
def test_steps_and_examples_in_one_dimension_are_refused(rows):
    torch.manual_seed(0)
    flat = Recurrent(lambda y: y.flatten(0, 1)).double()
    model = DataParallel(flat, ["cpu"] * 2, batch_dim=1)
    with pytest.raises(ValueError, match=r"dimension 0 has 3 times as many: .*return \(3, [34], 5"):
        model(batch(rows)[0])
    assert model(batch(1)[0]).shape == (STEPS, CLASSES)  # nothing is joined
