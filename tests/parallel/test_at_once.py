"""Replicas on the CPU run at the same time, wherever nothing but the clock shows it."""

import copy
import gc
import random
import sys
import threading
from contextlib import nullcontext
from contextvars import ContextVar

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from models import assert_same_gradients, batch, mlp
from subprocesses import output_of
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.overrides import TorchFunctionMode

from fastreduce import DataParallel
from fastreduce._C import DrawsNothing, HasDrawn
from fastreduce.parallel import at_once

VARIABLE = ContextVar("VARIABLE", default="nobody's")


@pytest.fixture
def way():
    return "at once"


SEEN: list[tuple[threading.Thread, int]] = []  # the thread and the cores of each shard


class Noting(nn.Module):
    """Notes which threads run it, all replicas in the same list; waits first, if it is to."""

    def __init__(self, inner: nn.Module | None = None) -> None:
        super().__init__()
        self.linear, self.inner = nn.Linear(6, 5), inner or nn.Identity()

    def forward(self, x, wait=lambda: None):
        wait()
        SEEN.append((threading.current_thread(), torch.get_num_threads()))
        return self.inner(self.linear(x))


def step(model, *inputs):
    X, y = batch()
    model.zero_grad()
    SEEN.clear()
    return model.backward(F.cross_entropy, (X.float(), *inputs), y)


def run_at_once(model) -> bool:
    """In the second step: a first one that draws has run in both ways."""
    step(model)
    step(model)
    names = [thread.name.startswith("fastreduce replica") for thread, _ in SEEN]
    assert any(names) == all(names)
    return all(names)


def test_all_replicas_run_before_one_ends():
    torch.set_num_threads(3)
    model = DataParallel(Noting(), ["cpu"] * 3)
    step(model, threading.Barrier(3, timeout=60).wait)  # one after the other would wait in vain


def test_no_more_run_at_the_same_time_than_there_are_cores():
    torch.set_num_threads(2)
    model = DataParallel(Noting(), ["cpu"] * 5)
    step(model)
    threads = [thread for thread, _ in SEEN]
    assert sorted(map(threads.count, set(threads))) == [2, 3]


@pytest.mark.parametrize(("cores", "replicas", "each"), [(2, 2, 1), (7, 3, 2), (3, 4, 1)])
def test_each_has_a_part_of_the_cores(cores, replicas, each):
    torch.set_num_threads(cores)
    model = DataParallel(Noting(), ["cpu"] * replicas)
    assert run_at_once(model)
    assert [own for _, own in SEEN] == [each] * replicas
    found = [torch.get_num_threads()]
    other = threading.Thread(target=lambda: found.append(torch.get_num_threads()))
    other.start()
    other.join()
    assert found == [cores, cores]


def test_they_follow_another_number_of_cores():
    model = DataParallel(Noting(), ["cpu"] * 2)
    assert run_at_once(model)
    torch.set_num_threads(6)
    step(model)
    assert [own for _, own in SEEN] == [3, 3]


def test_threads_end_with_their_model():
    model = DataParallel(Noting(), ["cpu"] * 2)
    assert run_at_once(model)
    threads = {thread for thread, _ in SEEN}
    SEEN.clear()
    del model
    gc.collect()
    for thread in threads:
        thread.join(timeout=60)
        assert not thread.is_alive()


class Distilled(nn.Module):
    def __init__(self, teacher) -> None:
        super().__init__()
        self.net, self.teacher = Noting(), [teacher]  # not one of its modules

    def forward(self, x, y):
        output = self.net(x)
        return F.mse_loss(output, self.teacher[0](x)) + F.cross_entropy(output, y)


def test_a_model_that_another_calls_in_forward():
    teacher = Noting().requires_grad_(False)
    bare = Distilled(teacher)
    model = DataParallel(copy.deepcopy(bare), ["cpu"] * 2)
    model.teacher[0] = DataParallel(teacher, ["cpu"] * 2)
    X, y = batch()
    for _ in range(2):
        model.backward(lambda loss: loss, (X.float(), y))
        bare(X.float(), y).backward()
    assert_same_gradients(model.net, bare.net, 1e-5)


class Mode(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


class NumPyNoise(nn.Module):
    def forward(self, x):
        return x + np.random.rand()


class PythonNoise(nn.Module):
    def forward(self, x):
        return x + random.random()


def hooked() -> nn.Module:
    inner = nn.Identity()
    inner.register_forward_hook(lambda *_: None)
    return inner


def with_generator() -> nn.Module:
    inner = nn.Identity()
    inner.generator = torch.Generator()
    return inner


ONE_BY_ONE = {
    "at_once=False": {"at_once": False},
    "reproducible": {"reproducible": 2},
    "measuring": {"shares": "measured"},
    "dropout": {"inner": nn.Dropout},
    "NumPy's numbers": {"inner": NumPyNoise},
    "Python's numbers": {"inner": PythonNoise},
    "a generator of its own": {"inner": with_generator},
    "a hook": {"inner": hooked},
    "compiled": {"inner": lambda: torch.jit.trace(nn.Tanh(), torch.zeros(1, 5))},
    "a mode": {"context": Mode},
    "a default device": {"context": lambda: torch.device("cpu")},
    "hooks of saved tensors": {"context": lambda: saved_tensors_hooks(lambda x: x, lambda x: x)},
    "one thread": {"cores": 1},
    "a small model, small inputs": {"parameters": 36, "inputs": 25},
    "nothing of all that": {},
}


@pytest.mark.parametrize("case", ONE_BY_ONE)
@pytest.mark.filterwarnings("ignore:.*torch.jit.trace:DeprecationWarning")
def test_where_the_order_would_show_they_run_one_after_the_other(case, monkeypatch):
    settings = ONE_BY_ONE[case].copy()
    inner, context = settings.pop("inner", nn.Identity), settings.pop("context", nullcontext)
    torch.set_num_threads(settings.pop("cores", 2))
    monkeypatch.setattr(at_once, "LEAST_PARAMETERS", settings.pop("parameters", 35))
    monkeypatch.setattr(at_once, "LEAST_INPUTS", settings.pop("inputs", 25))
    model = DataParallel(Noting(inner()), ["cpu"] * 2, **settings)
    with context():
        assert run_at_once(model) == (case == "nothing of all that")


@pytest.mark.parametrize("sync_batchnorm", [False, True])
def test_they_run_under_what_the_calling_thread_has_set(sync_batchnorm):
    seen = []

    class Net(nn.Sequential):
        def forward(self, x):
            modes = torch.is_grad_enabled(), torch.is_autocast_enabled("cpu")
            seen.append((modes, VARIABLE.get()))
            return super().forward(x)

    net = Net(nn.Linear(6, 5), nn.BatchNorm1d(5))
    model = DataParallel(net, ["cpu"] * 2, sync_batchnorm=sync_batchnorm)
    step(model)
    VARIABLE.set("ours")
    for gradients, cast in [(True, False), (False, True)]:
        seen.clear()
        with torch.set_grad_enabled(gradients), torch.autocast("cpu", enabled=cast):
            model(batch()[0].float())
        assert seen == [((gradients, cast), "ours")] * 2


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


def forked():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        return sum(torch.rand(()) for _ in range(20))


DRAWS = {
    "torch's": lambda: torch.rand(()),
    "those of a generator": lambda: sum(torch.rand((), generator=OWN) for _ in range(20)),
    "those of a fork": forked,
    "Python's": lambda: random.random(),
    "NumPy's": lambda: np.random.rand(),
}


@pytest.mark.parametrize("later", [False, True])
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("case", DRAWS)
def test_a_pass_that_draws_is_undone_and_repeated(case, training, later):
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


def test_what_forward_has_written_to_its_arguments_cannot_be_undone():
    class Scaling(nn.Linear):
        def forward(self, x):
            return F.dropout(super().forward(x.div_(2)))

    model = DataParallel(Scaling(6, 5), ["cpu"] * 2)
    with pytest.raises(RuntimeError, match="forward has written to its arguments and then drawn"):
        step(model)
    assert model.weight.grad is None
    DataParallel(Scaling(6, 5), ["cpu"] * 2, at_once=False)(batch()[0].float())


ones, LSTM = torch.ones(2, 64), nn.LSTM(4, 4, 2, dropout=0.5)
OPERATIONS = {
    "dropout": lambda: F.dropout(ones),
    "alpha_dropout": lambda: F.alpha_dropout(ones, training=True),
    "rrelu": lambda: F.rrelu(-ones, training=True),
    "attention": lambda: F.scaled_dot_product_attention(ones, ones, ones, dropout_p=0.5),
    "LSTM": lambda: LSTM(torch.ones(3, 2, 4)),
    "fractional pooling": lambda: F.fractional_max_pool2d(
        ones.view(1, 2, 8, 8), 2, output_ratio=(0.5, 0.5)
    ),
    "gumbel_softmax": lambda: F.gumbel_softmax(ones),
    "gamma": lambda: torch.distributions.Gamma(1.0, 1.0).sample(),
    "dirichlet": lambda: torch.distributions.Dirichlet(ones).sample(),
    "binomial": lambda: torch.binomial(ones, ones / 2),
    "poisson": lambda: torch.poisson(ones),
    "multinomial": lambda: torch.multinomial(ones, 2),
    "permutation": lambda: torch.randperm(3),
    "integers": lambda: torch.randint(3, (2,)),
    "normal": lambda: torch.randn_like(ones),
    "exponential": lambda: torch.empty(2).exponential_(),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_all_operations_that_draw_are_seen(name):
    before = torch.get_rng_state()
    with pytest.raises(HasDrawn), DrawsNothing():
        OPERATIONS[name]()
    assert torch.equal(torch.get_rng_state(), before)
    OPERATIONS[name]()  # control: elsewhere it draws
    assert not torch.equal(torch.get_rng_state(), before)
    with DrawsNothing():
        ones.matmul(ones.T).relu()  # control: others draw nothing


STEPS = """
import threading, torch, torch.nn.functional as F, fastreduce
fastreduce.parallel.at_once.LEAST_PARAMETERS = 0
torch.set_num_threads(2)
model = fastreduce.DataParallel(torch.nn.Linear(6, 3), ["cpu"] * 2)
X, y = torch.randn(12, 6), torch.arange(12) % 3

def train():
    threading.main_thread().join()
    for _ in range(3):
        model.backward(F.cross_entropy, X, y)
    print("trained")

threading.Thread(target=train).start()
"""


def test_a_thread_goes_on_when_the_main_thread_has_ended():
    assert output_of(STEPS) == "trained"


def test_the_seeds_that_follow_do_not_depend_on_it():
    numbers = []
    for wanted in (True, False):
        torch.manual_seed(1)
        model = DataParallel(mlp(), ["cpu"] * 2, at_once=wanted)
        for _ in range(3):
            step(model)
        numbers.append(torch.rand(()))
    assert torch.equal(*numbers)


@pytest.mark.parametrize("number", [0, 1])
def test_an_error_in_a_later_step_names_its_shard(number):
    X = torch.tensor([0.0, 0, 1, 1])[:, None] + torch.zeros(6)

    class Failing(nn.Identity):
        def forward(self, x):
            if (x[0] == number).all():
                raise KeyError("mine")
            return x

    model = DataParallel(nn.Sequential(nn.Linear(6, 6), Failing()), ["cpu"] * 2)
    with torch.no_grad():
        model[0].weight.copy_(torch.eye(6))
        model[0].bias.zero_()
    model.backward(F.mse_loss, X + 5, X)
    model.zero_grad()
    with pytest.raises(KeyError, match="mine") as raised:
        model.backward(F.mse_loss, X, X)
    if sys.version_info >= (3, 11):
        assert f"in shard {number} of 2" in "".join(raised.value.__notes__)
    assert model[0].weight.grad is None


CODE = """
import resource, torch
from fastreduce.parallel.at_once import ShardThreads

def faults():
    begin = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        kept = [torch.ones(1 << 18) for _ in range(8)]  # 1 MiB each
        del kept
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - begin

before = faults()
ShardThreads(2, meet=False).get()
faults()  # memory is fetched once more
print(before, faults())
"""


def test_freed_memory_is_kept_for_the_next_step():
    before, after = map(int, output_of(CODE).split())
    assert after < 100 < 1000 < before
