"""Names that a wrapped module adds to the module's own."""

import inspect

import pytest
import torch
from torch import nn

from fastreduce import DataParallel


class Method(nn.Linear):
    def backward(self):
        pass


class Property(nn.Linear):
    @property
    def devices(self):
        return ["mine"]


class Attribute(nn.Linear):
    shares = 3


def given(name, value):
    net = nn.Linear(2, 2)
    setattr(net, name, value)
    return net


@pytest.mark.parametrize(
    ("net", "name"),
    [
        (Method(2, 2), "backward"),
        (Property(2, 2), "devices"),
        (Attribute(2, 2), "shares"),
        (given("check", True), "check"),
        (given("graphed", nn.ReLU()), "graphed"),
        (given("no_sync", nn.Parameter(torch.ones(2))), "no_sync"),
        (torch.compile(Method(2, 2), backend="eager"), "backward"),
    ],
    ids=["method", "property", "of the class", "of the object", "child", "parameter", "compiled"],
)
def test_a_module_that_has_one_is_refused(net, name):
    with pytest.raises(ValueError, match=f"with an attribute {name}, .*: rename it, or wrap"):
        DataParallel(net, ["cpu"] * 2)
    inside = nn.Sequential(net)
    assert hasattr(DataParallel(inside, ["cpu"] * 2)[0], name)


@pytest.mark.parametrize("name", ["module", "forward", "device", "parallel"])
def test_other_names_are_the_modules_own(name):
    value = nn.ReLU() if name != "forward" else lambda x: x
    assert getattr(DataParallel(given(name, value), ["cpu"] * 2), name) is value


def test_a_notebook_shows_the_names_of_the_arguments():
    assert [*inspect.signature(DataParallel).parameters][:4] == [
        "module",
        "devices",
        "batch_dim",
        "shares",
    ]
    wrapped = DataParallel(nn.Linear(2, 2), ["cpu", "cpu"])  # these are those of a call
    assert [*inspect.signature(wrapped).parameters] == ["args", "kwargs"]
