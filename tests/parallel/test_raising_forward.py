"""A forward pass that raises leaves the module as it was."""

import copy

import pytest
import torch
from torch import nn

from fastreduce import DataParallel
from fastreduce.parallel.replicas import Replicas


class Raising(nn.Module):
    """Writes to a buffer, replaces another, and raises for rows that begin with ``number``."""

    def __init__(self, number):
        super().__init__()
        self.norm, self.number = nn.BatchNorm1d(3), number
        self.register_buffer("rows", torch.zeros(()))

    def forward(self, x):
        self.rows = self.rows + len(x)
        y = self.norm(x)
        if (x[:, 0] == self.number).any():
            raise KeyError("mine")
        return y


@pytest.mark.parametrize("sync_batchnorm", [False, True])
@pytest.mark.parametrize("number", [0, 1, 2], ids=["first shard", "second", "last"])
def test_buffers_stay(number, sync_batchnorm):
    net = Raising(number)
    model = DataParallel(net, ["cpu"] * 3, sync_batchnorm=sync_batchnorm)
    X = torch.tensor([0.0, 0, 1, 1, 2, 2])[:, None] + torch.zeros(3)
    buffers, before = list(net.buffers()), copy.deepcopy(net.state_dict())
    with pytest.raises(KeyError, match="mine"):
        model(X)
    assert all(x is y for x, y in zip(net.buffers(), buffers, strict=True))
    for name, value in net.state_dict().items():
        assert torch.equal(value, before[name]), name
    model(X + 5)
    assert all(
        not torch.equal(net.state_dict()[name], before[name]) for name, _ in net.named_buffers()
    )


def test_an_earlier_pass_can_still_go_backward():
    model = DataParallel(Raising(0).eval(), ["cpu"] * 2)
    earlier = model(torch.ones(4, 3))
    with pytest.raises(KeyError):
        model(torch.zeros(4, 3))
    earlier.sum().backward()
    assert model.norm.weight.grad is not None


class Setting(nn.Linear):
    """Does something to its parameters in forward."""

    def __init__(self, do):
        super().__init__(3, 3)
        self.late, self.do, self.inner = None, do, nn.Linear(3, 3)
        self.register_parameter("rare", None)

    def forward(self, x):
        y = super().forward(x)
        self.do(self)
        return y


def zeros(net):
    return nn.Parameter(torch.zeros_like(net.bias))


@pytest.mark.parametrize(
    ("do", "words"),
    [
        (lambda net: setattr(net, "bias", zeros(net)), "has set parameter bias"),
        (lambda net: setattr(net, "rare", zeros(net)), "has set parameter rare"),
        (lambda net: net.register_parameter("new", zeros(net)), "has set parameter new"),
        (lambda net: setattr(net, "bias", None), "has deleted a parameter"),
        (lambda net: delattr(net, "bias"), "has deleted a parameter"),
        (lambda net: setattr(net, "late", nn.Linear(3, 3)), r"has set parameter late\.weight"),
        (lambda net: setattr(net.bias, "data", zeros(net).data), "has set parameter bias"),
        (lambda net: setattr(net.inner.bias, "data", zeros(net)), r"has set parameter inner\.bias"),
    ],
    ids=[
        "replaced",
        "was None",
        "added",
        "None",
        "deleted",
        "a module's",
        "its data",
        "an inner one's data",
    ],
)
def test_a_parameter_that_forward_sets_is_refused(do, words):
    net = Setting(do)
    bias = net.bias
    model = DataParallel(net, ["cpu"] * 2)
    with pytest.raises(ValueError, match=f"{words}.*run one batch through the module before"):
        model(torch.ones(4, 3))
    assert net.bias is bias


@pytest.mark.parametrize(
    "do",
    [
        lambda net: torch.func.functional_call(
            net.inner, {"bias": torch.ones(3)}, torch.ones(2, 3)
        ),
        lambda net: setattr(net, "late", torch.ones(3)),
        lambda net: setattr(net, "late", nn.ReLU()),
        lambda net: setattr(net, "late", net.inner),
    ],
    ids=["for one call", "an attribute", "a module without one", "a known module"],
)
def test_what_is_no_new_parameter_is_fine(do):
    DataParallel(Setting(do), ["cpu"] * 2)(torch.ones(4, 3))


@pytest.mark.parametrize(
    ("do", "name"),
    [
        (lambda net: net.bias.detach().mul_(0.5), "bias"),
        (lambda net: torch.no_grad()(net.inner.weight.add_)(net.weight), r"inner\.weight"),
    ],
    ids=["detached", "a teacher that follows"],
)
@pytest.mark.parametrize("share", [True, False], ids=["the module's memory", "copies"])
def test_a_parameter_that_forward_writes_to_is_refused(do, name, share):
    net = Setting(do)
    model = DataParallel(net, ["cpu"] * 2)
    model._parallel.use(Replicas(net, [torch.device("cpu")] * 2, share=share))
    with pytest.raises(ValueError, match=f"has written to parameter {name}.*between two forward"):
        model(torch.ones(4, 3))
    DataParallel(net, ["cpu"])(torch.ones(4, 3))  # one replica is the bare module


def replace_forward(model):
    old = model.forward
    model.forward = lambda x: old(x) * 2


CALLS_ITSELF = {
    "compile": lambda model: model.compile(backend="eager"),
    "a replaced forward": replace_forward,
    "a hook": lambda model: model.register_forward_hook(lambda _, args, out: model(*args)),
}


@pytest.mark.parametrize("sync_batchnorm", [False, True])
@pytest.mark.parametrize("how", CALLS_ITSELF)
def test_a_wrapper_that_is_called_by_the_module_it_runs(how, sync_batchnorm):
    net = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5))
    model = DataParallel(net, ["cpu"] * 2, sync_batchnorm=sync_batchnorm)
    CALLS_ITSELF[how](model)
    with pytest.raises(RuntimeError, match="forward has called the DataParallel that runs it"):
        model(torch.ones(4, 6))
