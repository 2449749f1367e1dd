"""Dataclasses whose constructor does more than to keep its arguments are cut and joined, too."""

from collections import namedtuple
from dataclasses import InitVar, dataclass, field

import pytest
import torch
from torch import nn

from fastreduce import DataParallel, Whole
from fastreduce.parallel.batch import cut
from fastreduce.parallel.outputs import join

CPU = torch.device("cpu")


@dataclass
class Scaled:
    """Wants what is no attribute."""

    x: torch.Tensor
    factor: InitVar[int]

    def __post_init__(self, factor):
        self.y = self.x * factor


@dataclass
class Doubled:
    """Changes what it was given."""

    x: torch.Tensor

    def __post_init__(self):
        self.x = self.x * 2


@dataclass
class Counted:
    """Computes from what it was given."""

    x: torch.Tensor
    rows: int = field(init=False)

    def __post_init__(self):
        self.rows = len(self.x)


@dataclass(frozen=True, slots=True)
class Frozen:
    x: torch.Tensor
    factor: InitVar[int] = 3


@dataclass
class Own:
    x: torch.Tensor

    def __init__(self, first, others):
        self.x = torch.cat([first, others])


@dataclass
class Named(dict):
    x: torch.Tensor

    def __post_init__(self):
        self["x"] = self.x


X = torch.tensor([1.0, 2.0, 3.0])
CASES = {
    "InitVar": (lambda x: Scaled(x, 2), lambda part: (part.x, part.y / 2)),
    "changed": (lambda x: Doubled(x / 2), lambda part: (part.x,)),
    "computed": (Counted, lambda part: (part.x, part.x[: part.rows])),
    "frozen, with slots": (Frozen, lambda part: (part.x,)),
    "own constructor": (lambda x: Own(x[:1], x[1:]), lambda part: (part.x,)),
    "a dict": (Named, lambda part: (part.x, part["x"])),
}


@pytest.mark.parametrize("name", CASES)
def test_cut_and_joined(name):
    make, tensors_of = CASES[name]
    parts = cut(make(X), [2, 1], [CPU, CPU], 0)
    assert all(type(part) is type(make(X)) for part in parts)
    for part, wanted in zip(parts, (X[:2], X[2:]), strict=True):
        assert all(torch.equal(tensor, wanted) for tensor in tensors_of(part))
    joined = join(parts, [2, 1], CPU, 0)
    assert all(torch.equal(tensor, X) for tensor in tensors_of(joined))


def test_in_and_out_of_a_model():
    class Twice(nn.Linear):
        def forward(self, given):
            return Scaled(super().forward(given.y), 2)

    model = DataParallel(Twice(1, 1), ["cpu"] * 2)
    found = model(Scaled(X[:, None], 3))
    torch.testing.assert_close(found.y, 2 * model.module(Scaled(X[:, None], 3)).x)


def test_those_inside_whole_go_to_the_replicas_device():
    @dataclass
    class Masked:
        mask: torch.Tensor

    (part,) = cut([X, Whole(Masked(X))], [3], [torch.device("meta")], 0)
    assert part[1].mask.is_meta


def _tuple_of(x, y):
    return namedtuple("Output", ["x", "y"])(x, y)


def _dataclass_of(x, y):
    @dataclass
    class Output:
        x: torch.Tensor
        y: torch.Tensor

    return Output(x, y)


@pytest.mark.parametrize("made", [_tuple_of, _dataclass_of])
def test_a_class_that_forward_makes_in_each_pass(made):
    class Net(nn.Linear):
        def forward(self, x):
            return made(super().forward(x), x)

    net, x = Net(3, 2), torch.randn(5, 3)
    found = DataParallel(net, ["cpu"] * 2)(x)
    torch.testing.assert_close(found.x, net(x).x)
    assert torch.equal(found.y, x) and type(found).__name__ == "Output"
