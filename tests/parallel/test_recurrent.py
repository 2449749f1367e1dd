"""Recurrent layers, which on GPUs move their weights to one block of memory: here they do, too."""

import copy

import pytest
import torch
import torch.nn.functional as F
from models import CLASSES, FEATURES, assert_same_gradients, batch
from torch import nn
from torch.utils.checkpoint import checkpoint

from fastreduce import DataParallel
from fastreduce.parallel import graphed


@pytest.fixture(autouse=True)
def moves(monkeypatch):
    """As `torch._cudnn_rnn_flatten_weight` does; it returns how often layers have moved some."""
    moved = []

    def flatten_parameters(self):
        moved.append(self)
        with torch.no_grad():
            for weight in self._flat_weights:
                weight.set_(weight.clone())

    monkeypatch.setattr(nn.RNNBase, "flatten_parameters", flatten_parameters)
    return moved


class Recurrent(nn.Module):
    def __init__(self, kind, run=lambda layer, x: layer(x)) -> None:
        super().__init__()
        self.layer, self.run = kind(FEATURES, 4, batch_first=True), run
        self.head = nn.Linear(4, CLASSES)

    def forward(self, x):
        return self.head(self.run(self.layer, x[:, None, :].expand(-1, 3, -1))[0][:, -1])


def asks_for_it(layer, x):
    layer.flatten_parameters()
    return layer(x)


def checkpointed(layer, x):
    return checkpoint(layer, x, use_reentrant=False)


CASES = {
    "LSTM": (nn.LSTM, lambda layer, x: layer(x)),
    "GRU that forward asks for it": (nn.GRU, asks_for_it),
    "RNN in a checkpoint": (nn.RNN, checkpointed),
}


@pytest.mark.parametrize("case", CASES)
def test_weights_stay_where_they_are(moves, case):
    bare = Recurrent(*CASES[case]).double()
    model = DataParallel(copy.deepcopy(bare), ["cpu"] * 2)
    places = [parameter.data_ptr() for parameter in model.parameters()]
    X, y = batch()
    moves.clear()
    for _ in range(2):
        F.cross_entropy(model(X), y).backward()
        F.cross_entropy(bare(X), y).backward()
    assert_same_gradients(model, bare)
    assert [parameter.data_ptr() for parameter in model.parameters()] == places
    assert all(layer is bare.layer for layer in moves)


@pytest.mark.parametrize("case", CASES)
def test_no_layer_holds_the_graph_of_a_pass(case):
    model = DataParallel(Recurrent(*CASES[case]).double(), ["cpu"] * 2)
    X, y = batch()
    for _ in range(2):
        model.backward(F.cross_entropy, X, y)
        model._parallel.replicas.forget_last_pass()
        graphed._check_that_no_graph_holds(model.module)


def test_the_module_may_move_them_between_passes(moves):
    model = DataParallel(Recurrent(nn.LSTM).double(), ["cpu"] * 2)
    X, _ = batch()
    wanted = model(X)
    moves.clear()
    model.layer.flatten_parameters()
    assert moves == [model.layer]
    torch.testing.assert_close(model(X), wanted)


def test_a_method_of_the_users_own_stays():
    net = Recurrent(nn.LSTM).double()
    net.layer.flatten_parameters = own = lambda: None
    model = DataParallel(net, ["cpu"] * 2)
    model(batch()[0])
    assert model.layer.flatten_parameters is own
