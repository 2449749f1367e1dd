"""Where the order of the shards would show, they run one after the other; elsewhere at once."""

import random
import warnings
from contextlib import nullcontext

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from noting import Noting, run_at_once, step
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import checkpoint

from fastreduce import DataParallel
from fastreduce.parallel import at_once


@pytest.fixture
def way():
    return "at once"


class Mode(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


class NumPyNoise(nn.Module):
    def forward(self, x):
        return x + np.random.rand()


class PythonNoise(nn.Module):
    def forward(self, x):
        return x + random.random()


class Seeded(nn.Module):
    def forward(self, x):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(3)
            return x + torch.rand(())


class Repeating(nn.Module):
    def forward(self, x):
        state = torch.get_rng_state()
        one = F.dropout(x)
        torch.set_rng_state(state)
        return one + F.dropout(x)


class Derived(nn.Module):
    def forward(self, x):
        return torch.func.jvp(torch.sin, (x,), (x,))[1]


class Attention(nn.Module):
    def forward(self, x):
        with sdpa_kernel(SDPBackend.MATH):
            return F.scaled_dot_product_attention(x, x, x)


class InAMethod(nn.Module):
    def forward(self, x):
        return self.quietly(x)

    def quietly(self, x):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return x + 1


def derived(x):
    return torch.func.jvp(torch.sin, (x,), (x,))[1]


class InAFunction(nn.Module):
    def forward(self, x):
        return derived(x)


class Checkpointed(nn.Module):
    def __init__(self, use_reentrant, p=0.5):
        super().__init__()
        self.inner, self.use_reentrant = nn.Dropout(p), use_reentrant

    def forward(self, x):
        return checkpoint(self.inner, x, use_reentrant=self.use_reentrant)


class Table(nn.Module):
    def __init__(self, table) -> None:
        super().__init__()
        self.table = table

    def forward(self, x):
        return self.table((x.abs() * 3).long() % 10).reshape(len(x), 5, -1).sum(-1)


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
    "dropout in a checkpoint": {"inner": lambda: Checkpointed(False)},
    "dropout in a checkpoint of the older kind": {"inner": lambda: Checkpointed(True)},
    "a seed of its own": {"inner": Seeded},
    "the same mask twice": {"inner": Repeating},
    "derivatives in forward mode": {"inner": Derived},
    "a flag of the process": {"inner": Attention},
    "warnings, in a method": {"inner": InAMethod},
    "derivatives in a function of the file": {"inner": InAFunction},
    "NumPy's numbers": {"inner": NumPyNoise},
    "Python's numbers": {"inner": PythonNoise},
    "a generator of its own": {"inner": with_generator},
    "a max_norm": {"inner": lambda: Table(nn.Embedding(10, 5, max_norm=1.0))},
    "a max_norm of bags": {"inner": lambda: Table(nn.EmbeddingBag(10, 5, max_norm=1.0))},
    "a hook": {"inner": hooked},
    "compiled": {"inner": lambda: torch.jit.trace(nn.Tanh(), torch.zeros(1, 5))},
    "a mode": {"context": Mode},
    "a default device": {"context": lambda: torch.device("cpu")},
    "hooks of saved tensors": {"context": lambda: saved_tensors_hooks(lambda x: x, lambda x: x)},
    "one thread": {"cores": 1},
    "a small model, small inputs": {"parameters": 36, "inputs": 25},
}
AT_ONCE = {
    "nothing of all that": {},
    "dropout": {"inner": nn.Dropout},
    "a checkpoint without dropout": {
        "inner": lambda: nn.Sequential(Checkpointed(False, 0), nn.Dropout())
    },
}


@pytest.mark.parametrize("case", ONE_BY_ONE | AT_ONCE)
@pytest.mark.filterwarnings("ignore:.*torch.jit.trace:DeprecationWarning")
def test_where_the_order_would_show_they_run_one_after_the_other(case, monkeypatch):
    settings = (ONE_BY_ONE | AT_ONCE)[case].copy()
    inner, context = settings.pop("inner", nn.Identity), settings.pop("context", nullcontext)
    torch.set_num_threads(settings.pop("cores", 2))
    monkeypatch.setattr(at_once, "LEAST_PARAMETERS", settings.pop("parameters", 35))
    monkeypatch.setattr(at_once, "LEAST_INPUTS", settings.pop("inputs", 25))
    model = DataParallel(Noting(inner()), ["cpu"] * 2, **settings)
    with context():
        assert run_at_once(model) == (case in AT_ONCE)


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_dropout_and_checkpoints_have_the_gradient_of_one_after_the_other(use_reentrant):
    found = []
    for wanted in (True, False):
        torch.manual_seed(1)
        inner = nn.Sequential(Checkpointed(use_reentrant), nn.Dropout(), Checkpointed(False, 0))
        model = DataParallel(Noting(inner), ["cpu"] * 2, at_once=wanted)
        for _ in range(3):
            loss = step(model)
        found.append((loss, model.linear.weight.grad))
    assert all(map(torch.equal, *found))
