"""Forward runs under what the calling thread has set: modes, hooks, variables and transforms."""

from contextvars import ContextVar

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.overrides import TorchFunctionMode
from torch.profiler import profile
from torch.utils.flop_counter import FlopCounterMode

from fastreduce import DataParallel


class Seen(TorchFunctionMode):
    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_function__(self, func, _, args=(), kwargs=None):
        self.count += func is F.linear
        return func(*args, **(kwargs or {}))


WORD = ContextVar("WORD", default="unset")


class Looks(nn.Linear):
    def forward(self, x):
        self.seen = torch.empty(1).device.type, WORD.get()
        return super().forward(x)


@pytest.mark.parametrize("sync", [False, True])
def test_forward_runs_under_what_the_calling_thread_has_set(sync):
    model = DataParallel(Looks(3, 3), ["cpu"] * 3, sync_batchnorm=sync)
    X, saved = torch.ones(6, 3), []
    with Seen() as seen, FlopCounterMode(display=False) as flops:
        model(X)
    assert seen.count == 3
    assert flops.get_total_flops() == 6 * 3 * 3 * 2
    with profile() as profiler:
        model(X)
    assert sum(event.name == "aten::addmm" for event in profiler.events()) == 3
    with saved_tensors_hooks(lambda x: (saved.append(x), x)[1], lambda x: x):
        model(X)
    assert len(saved) == 3
    token = WORD.set("set")
    with torch.device("meta"):  # replicas are made, and draw their seeds, on their own devices
        model(X)
    WORD.reset(token)
    assert model.seen == ("meta", "set")


@pytest.mark.parametrize("sync", [False, True])
def test_transforms_of_functions(sync):
    net = nn.Sequential(nn.Linear(3, 4), nn.GroupNorm(2, 4), nn.Linear(4, 2)).double()
    model = DataParallel(net, ["cpu"] * 3, sync_batchnorm=sync)
    X, params = torch.randn(6, 3, dtype=torch.float64), dict(net.named_parameters())
    found, wanted = (
        torch.func.grad(lambda p, of=of: torch.func.functional_call(of, p, (X,)).square().sum())
        for of in (model, model.module)
    )
    torch.testing.assert_close(found(params), wanted(params), rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(torch.func.jacrev(model)(X), torch.func.jacrev(model.module)(X))
