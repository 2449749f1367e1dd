"""Shards go backward at the same time if their graphs have nothing in common but the sums."""

import copy

import pytest
import torch
import torch.nn.functional as F
from models import CLASSES, Changed, assert_same_gradients, batch, mlp
from torch import Tensor, nn
from torch.profiler import profile
from torch.utils.checkpoint import checkpoint

from fastreduce import DataParallel
from fastreduce._C import BackwardOfShards


@pytest.fixture
def way():
    return "at once"


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        return grad * 2


def retained(module, x):
    module.first.weight.retain_grad()
    return x


def hooked_parameter(module, x):
    module.first.weight.register_hook(lambda grad: grad.clone())
    return x


def hooked(module, x):
    x.register_hook(lambda grad: grad * 3)
    return x


def hooked_operation(module, x):
    x.grad_fn.register_prehook(lambda grads: (grads[0] * 3,))
    return x


def on_a_leaf(module, x):
    return x + torch.ones(8, dtype=x.dtype, requires_grad=True)


APART = {
    "plain": lambda _, x: x,
    "a view written to": lambda _, x: x.clone().mul_(2),
    "no gradient of a part": lambda _, x: torch.cat([x[:, :4], x[:, 4:].detach()], 1),
    "checkpoint": lambda module, x: checkpoint(nn.Tanh(), x, use_reentrant=False),
}
TOGETHER = {
    "a function in Python": lambda _, x: Doubled.apply(x),
    "a hook of a tensor": hooked,
    "a hook of an operation": hooked_operation,
    "a hook of a parameter": hooked_parameter,
    "a parameter's gradient kept": retained,
    "another leaf": on_a_leaf,
    "a checkpoint that goes backward itself": lambda _, x: checkpoint(
        nn.Tanh(), x, use_reentrant=True
    ),
}


@pytest.fixture
def asked(monkeypatch):
    """What `BackwardOfShards` says of each backward pass."""
    said = []

    def ask(losses):
        made = BackwardOfShards(losses)
        said.append(made.is_apart)
        return made

    monkeypatch.setattr("fastreduce._C.BackwardOfShards", ask)
    return said


def gradients_are_the_bare_modules(net, *others, loss=F.cross_entropy) -> None:
    bare = copy.deepcopy(net)
    model = DataParallel(net, ["cpu"] * 3)
    X, y = batch()
    for _ in range(3):
        model.backward(loss, (X, *others), y)
        loss(bare(X, *others), y).backward()
    assert_same_gradients(model, bare)


@pytest.mark.parametrize("case", [*APART, *TOGETHER])
def test_which_shards_go_backward_at_the_same_time(case, asked):
    gradients_are_the_bare_modules(Changed({**APART, **TOGETHER}[case]).double())
    assert asked == [case in APART] * 3


def test_inputs_that_train_are_a_leaf_of_all_shards(asked):
    X = torch.ones(7, 8, dtype=torch.float64, requires_grad=True)
    gradients_are_the_bare_modules(Changed(lambda _, x, y: x * y).double(), X)
    assert asked == [False] * 3
    assert X.grad is not None


def test_parameters_of_the_loss_function_are_a_leaf_of_all_shards(asked):
    class Loss(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(CLASSES, dtype=torch.float64))

        def forward(self, output, y):
            return F.cross_entropy(output * self.scale, y)

    loss, alone = Loss(), Loss()
    net = mlp().double()
    bare, model = copy.deepcopy(net), DataParallel(net, ["cpu"] * 2)
    X, y = batch()
    model.backward(loss, X, y)
    alone(bare(X), y).backward()
    assert asked == [False]
    torch.testing.assert_close(loss.scale.grad, alone.scale.grad)


def test_what_shards_share_is_in_no_graph_of_its_own(asked):
    """Were it, the second shard would find its buffers freed."""
    held = {}

    def loss(output, y):
        held.setdefault("first", output.exp().mean())
        return F.cross_entropy(output, y) + held["first"] * 0

    model = DataParallel(mlp().double(), ["cpu"] * 2)
    X, y = batch()
    losses = list(map(loss, *parts(model, X, y)))
    assert not BackwardOfShards(losses).is_apart
    assert BackwardOfShards(losses[:1]).is_apart  # control: one of them alone


def parts(model, X, y) -> tuple[list[Tensor], list[Tensor]]:
    halves = X.tensor_split(2)
    outputs = model._parallel.passes.forward([0, 1], [((half,), {}) for half in halves])
    return outputs, y.tensor_split(2)


def test_a_profile_has_the_operations_of_all_shards():
    model = DataParallel(mlp(), ["cpu"] * 2)
    X, y = batch()
    model.backward(F.cross_entropy, X.float(), y)
    with profile() as seen:
        model.backward(F.cross_entropy, X.float(), y)
    counts = {event.key: event.count for event in seen.key_averages()}
    assert (counts["aten::linear"], counts["TanhBackward0"]) == (4, 2)


def test_sums_are_written_into_the_gradients_of_the_first_shard():
    model = DataParallel(mlp(), ["cpu"] * 2)
    X, y = batch()
    parts(model, X.float(), y)  # the first pass has hooks that see in which order gradients come
    passes = BackwardOfShards(list(map(F.cross_entropy, *parts(model, X.float(), y))))
    passes.run(1)
    passes.run(0)
    with profile() as seen:
        passes.sum()
    operations = {event.key for event in seen.key_averages()}
    assert "aten::detach" in operations  # control: operations are seen
    assert "aten::clone" not in operations
    assert all(parameter.grad is not None for parameter in model.parameters())
