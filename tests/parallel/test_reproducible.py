"""With `reproducible=m`, any number of replicas ends with the same bits."""

import copy
import random
from functools import partial

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from models import Attention
from torch import nn

from fastreduce import DataParallel


@pytest.fixture
def way():
    return "at once"  # which they never do


STEPS, ROWS, CLASSES = 5, 19, 5  # 19 rows: micro-shards of different sizes


def lenet() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.AvgPool2d(2), nn.Conv2d(4, 8, 2), nn.ReLU()),
        *(nn.Flatten(), nn.Linear(8, CLASSES)),
    )


def dropping() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, CLASSES))


def normed() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU()),
        *(nn.Flatten(), nn.Linear(64, CLASSES)),
    )


SGD = partial(torch.optim.SGD, lr=0.1, momentum=0.9)
CASES = {
    "LeNet, SGD": (lenet, (1, 6, 6), SGD),
    "MLP with dropout, Adam": (dropping, (6,), torch.optim.Adam),
    "CNN with BatchNorm": (normed, (1, 6, 6), SGD),
    "transformer": (Attention, (6,), torch.optim.AdamW),
}


def trained(case: str, k: int, reproducible: int | None, steps: int = STEPS) -> dict:
    make, shape, optimizer = CASES[case]
    torch.manual_seed(1)
    model = DataParallel(make(), ["cpu"] * k, reproducible=reproducible)
    step = optimizer(model.parameters())
    for seed in range(steps):
        X = torch.randn(ROWS, *shape, generator=torch.Generator().manual_seed(seed))
        y = torch.arange(ROWS) % CLASSES
        step.zero_grad()
        model.backward(F.cross_entropy, X, y)
        step.step()
    return {name: value.clone() for name, value in model.state_dict().items()}


def same_bits(one: dict, other: dict) -> bool:
    return all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("case", CASES)
def test_the_same_parameters_and_buffers_on_any_number_of_replicas(case):
    wanted = trained(case, 1, 8)
    for k in (2, 3, 4, 8):
        assert same_bits(trained(case, k, 8), wanted), k


@pytest.mark.sweep("50 steps on 1, 2, 4 and 8 replicas")
@pytest.mark.parametrize("case", CASES)
def test_the_same_after_fifty_steps(case):
    wanted = trained(case, 1, 8, steps=50)
    assert all(same_bits(trained(case, k, 8, steps=50), wanted) for k in (2, 4, 8))


def test_control_without_micro_shards_the_number_of_replicas_shows():
    assert not same_bits(trained("LeNet, SGD", 1, None), trained("LeNet, SGD", 4, None))


def test_one_run_may_go_on_with_another_number_of_replicas():
    make, shape, optimizer = CASES["LeNet, SGD"]
    torch.manual_seed(1)
    one = make()
    nets = [one, copy.deepcopy(one)]
    for net, counts in zip(nets, ([2, 2, 2], [1, 4, 8]), strict=True):
        step = optimizer(net.parameters())
        for seed, k in enumerate(counts):
            model = DataParallel(net, ["cpu"] * k, reproducible=8)
            X = torch.randn(ROWS, *shape, generator=torch.Generator().manual_seed(seed))
            step.zero_grad()
            model.backward(F.cross_entropy, X, torch.arange(ROWS) % CLASSES)
            step.step()
    assert same_bits(nets[0].state_dict(), nets[1].state_dict())


def test_dropout_follows_torchs_seed():
    model = DataParallel(dropping(), ["cpu"] * 2)
    X = torch.randn(8, 6)
    outputs = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        outputs.append(model(X).detach())
    assert torch.equal(outputs[0], outputs[1]) and not torch.equal(outputs[0], outputs[2])


def test_replicas_drop_different_elements():
    model = DataParallel(nn.Sequential(nn.Dropout(0.5), nn.Linear(64, 64)), ["cpu"] * 2)
    with torch.no_grad():
        model[1].weight.copy_(torch.eye(64))
        model[1].bias.zero_()
    one, two = model(torch.ones(2, 64))
    assert not torch.equal(one == 0, two == 0)


class Drawing(nn.Linear):
    def __init__(self, draw) -> None:
        super().__init__(6, CLASSES)
        self.draw = draw

    def forward(self, x):
        return super().forward(x) + self.draw()


@pytest.mark.parametrize("draw", [random.random, np.random.rand], ids=["Python's", "NumPy's"])
def test_random_numbers_that_are_not_torchs_are_refused(draw):
    model = DataParallel(Drawing(draw), ["cpu"] * 2, reproducible=4)
    with pytest.raises(
        ValueError, match=r"shard 0 has drawn numbers from Python's random or numpy"
    ):
        model.backward(F.cross_entropy, torch.randn(8, 6), torch.arange(8) % CLASSES)
    assert model.weight.grad is None
    model.eval()
    model(torch.randn(8, 6))  # nothing is trained
    DataParallel(Drawing(draw), ["cpu"] * 2)(torch.randn(8, 6))  # nothing is promised


class Noisy(nn.Linear):
    """Draws from a generator of its own."""

    def __init__(self, kind) -> None:
        super().__init__(6, CLASSES)
        self.own = kind()

    def forward(self, x):
        y = super().forward(x)
        if isinstance(self.own, torch.Generator):
            return y + torch.randn(y.shape, generator=self.own)
        drawn = [self.own.normal(0, 1) for _ in range(y.numel())]
        return y + torch.tensor(drawn).view_as(y)


class Python(random.Random):
    normal = random.Random.gauss


GENERATORS = {
    "torch's": lambda: torch.Generator().manual_seed(3),
    "Python's": partial(Python, 3),
    "NumPy's": partial(np.random.default_rng, 3),
    "NumPy's old": partial(np.random.RandomState, 3),
}


@pytest.mark.parametrize("kind", GENERATORS.values(), ids=GENERATORS)
def test_a_generator_of_the_modules_own(kind):
    gradients = []
    for k in (1, 2, 4):
        torch.manual_seed(0)
        model = DataParallel(Noisy(kind), ["cpu"] * k, reproducible=4)
        for _ in range(2):
            model.backward(
                lambda out, y: (out - y).square().mean(), torch.ones(8, 6), torch.ones(8, 1)
            )
        gradients.append(model.weight.grad)
    assert all(torch.equal(x, gradients[0]) for x in gradients)
    one, two = DataParallel(Noisy(kind), ["cpu"] * 2)(torch.zeros(2, 6))
    assert not torch.equal(one, two)
