"""Shards that run at the same time draw what they would one after the other. A pass in which they
cannot is undone."""

import itertools
import random
from contextlib import suppress

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from models import batch, mlp
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from fastreduce import DataParallel
from fastreduce._C import HasDrawn
from fastreduce.parallel.draws import Draws


@pytest.fixture
def way():
    return "at once"


def step(model):
    X, y = batch()
    model.zero_grad()
    return model.backward(F.cross_entropy, X.float(), y)


class Drawing(nn.Module):
    """Draws from its second call on, or in all; counts its calls in a buffer and an attribute."""

    def __init__(self, draw, later) -> None:
        super().__init__()
        self.linear, self.draw, self.later = nn.Linear(6, 5), draw, later
        self.register_buffer("calls", torch.zeros(()))
        self.number = 0

    def forward(self, x):
        self.calls += 1
        self.number += 1
        return self.linear(x) + (self.draw() if self.calls > self.later else 0)


OWN = torch.Generator()


def caught():
    with torch.no_grad():
        try:
            return torch.rand(())
        except:  # noqa: E722
            return 0.0


def said_in_other_words():
    with torch.no_grad():
        try:
            return torch.rand(())
        except BaseException as error:
            raise ValueError("mine") from error


@torch.jit.script
def compiled(x):
    return F.dropout(x, 0.5, True)


def compiled_without_gradients():
    with torch.no_grad():
        return compiled(torch.ones(9)).sum()


def forked():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        return sum(torch.rand(()) for _ in range(20))


DRAWS = {
    "torch's": lambda: torch.rand(()),
    "torch's, on no device": lambda: torch.rand((), device="meta").numel(),
    "torch's, given by name": lambda: torch.rand((), generator=torch.default_generator),
    "those of a generator": lambda: sum(torch.rand((), generator=OWN) for _ in range(20)),
    "those of a fork": forked,
    "Python's": lambda: random.random(),
    "NumPy's": lambda: np.random.rand(),
    "an error that is caught": caught,
    "an error in other words": said_in_other_words,
    "those of a compiled function": compiled_without_gradients,
    "none at all": lambda: F.rrelu(torch.ones(9), training=True).sum(),
    "torch's, then Python's": lambda: torch.rand(()) + random.random(),
}


@pytest.mark.parametrize("later", [False, True])
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("case", DRAWS)
def test_a_pass_that_draws_has_the_numbers_of_one_after_the_other(case, training, later):
    found = []
    for wanted in (True, False):
        torch.manual_seed(1)
        OWN.manual_seed(1)
        random.seed(1)
        np.random.seed(1)
        model = DataParallel(Drawing(DRAWS[case], later), ["cpu"] * 2, at_once=wanted)
        model.train(training)
        for _ in range(3):
            loss = step(model)
        after = torch.rand(()).item(), random.random(), np.random.rand()
        found.append((loss, model.linear.weight.grad, after))
        assert (model.calls, model.number) == (3, 3)
    (loss, gradient, after), wanted = found
    assert torch.equal(loss, wanted[0]) and torch.equal(gradient, wanted[1])
    assert after == wanted[2]


@pytest.mark.parametrize("p", [0.0, 0.5])
def test_a_model_inside_of_another_that_draws(p):
    def found(at_once):
        torch.manual_seed(1)
        inner = DataParallel(nn.Sequential(nn.Linear(6, 5), nn.Dropout(p)), ["cpu"] * 2)
        net = nn.Sequential(nn.Dropout(0.5), inner, nn.Dropout(0.5))
        model = DataParallel(net, ["cpu"] * 2, at_once=at_once)
        return [step(model) for _ in range(3)], torch.rand(3)

    wanted = found(False)
    for _ in range(3):
        torch.testing.assert_close(found(True), wanted)


def test_numbers_of_a_pass_that_is_undone_move_no_generator():
    draws, before = Draws([torch.device("cpu")] * 2, only_torch=False), torch.get_rng_state()
    with suppress(HasDrawn), draws:
        with draws.at_once(2)[0]:
            torch.rand(2)
        raise HasDrawn
    with draws:
        pass
    assert torch.equal(torch.get_rng_state(), before)


def test_a_buffer_that_a_pass_adds_is_undone_with_it():
    class Counting(nn.Linear):
        def forward(self, x):
            if "calls" not in self._buffers:
                self.register_buffer("calls", torch.zeros(()))
            self.calls += 1
            return super().forward(x) * self.calls + random.random()

    model = DataParallel(Counting(6, 5), ["cpu"] * 2)
    step(model)
    assert model.calls == 1


def test_what_forward_has_written_to_its_arguments_cannot_be_undone():
    class Scaling(nn.Linear):
        def forward(self, x):
            return super().forward(x.div_(2)) + random.random()

    model = DataParallel(Scaling(6, 5), ["cpu"] * 2)
    with pytest.raises(RuntimeError, match="forward has written to its arguments and then drawn"):
        step(model)
    assert model.weight.grad is None
    DataParallel(Scaling(6, 5), ["cpu"] * 2, at_once=False)(batch()[0].float())


@pytest.mark.parametrize("at_once", [True, False])
def test_torchs_generator_moves_only_where_a_shard_draws(at_once):
    torch.manual_seed(1)
    before = torch.get_rng_state()
    model = DataParallel(nn.Sequential(mlp(), nn.Dropout(0.0)), ["cpu"] * 2, at_once=at_once)
    torch.set_rng_state(before)
    for _ in range(3):
        step(model)
    assert torch.equal(torch.get_rng_state(), before)
    model[1].p = 0.5
    masks = [model(torch.ones(8, 6)) for _ in range(3)]
    assert not torch.equal(torch.get_rng_state(), before)
    assert not any(torch.equal(one, other) for one, other in itertools.combinations(masks, 2))


def per_example_gradients(model, **how):
    def loss(parameters, x):
        return torch.func.functional_call(model, parameters, (x[None],)).square().sum()

    parameters = {name: x.detach() for name, x in model.named_parameters()}
    return torch.func.vmap(torch.func.grad(loss), (None, 0), **how)(parameters, batch()[0])


TRANSFORMS = {
    "per example": lambda model: list(per_example_gradients(model).values()),
    "forward": lambda model: [torch.func.jacfwd(model)(batch()[0])],
    "second": lambda model: [torch.func.hessian(lambda x: model(x).sum())(batch()[0])],
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_derivatives_by_torch_func_in_training(name):
    bare = mlp().double()
    wanted = TRANSFORMS[name](bare)
    found = TRANSFORMS[name](DataParallel(bare, ["cpu"] * 2))
    torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-10)


def test_shapes_of_a_model_in_training_are_found_without_numbers():
    model = DataParallel(nn.Sequential(mlp(), nn.Dropout(0.5)), ["cpu"] * 2)
    X = batch()[0].float()
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        assert model(mode.from_tensor(X)).shape == (len(X), 5)
    exported = torch.export.export(model, (X,)).module()
    assert exported(X).shape == (len(X), 5)


def test_each_example_of_a_transform_may_draw_its_own():
    model = DataParallel(nn.Sequential(mlp(), nn.Dropout(0.5)).double(), ["cpu"] * 2)
    gradients = per_example_gradients(model, randomness="different")["0.2.bias"]
    assert len({tuple(row.tolist()) for row in gradients != 0}) > 1
