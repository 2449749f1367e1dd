"""Forward hooks of a wrapped module run for each replica, and write where the bare ones do."""

import functools

import pytest
import torch
from models import batch
from torch import nn

from fastreduce import DataParallel


def test_hooks_run_for_each_replica(model):
    shapes = []
    model.register_forward_hook(lambda module, args, output: shapes.append(tuple(output.shape)))
    X, _ = batch()
    model(X)
    assert shapes == [(4, 5), (3, 5)]


class Seen:
    def __init__(self):
        self.rows = []

    def hook(self, module, inputs, output):
        self.rows.append(len(output))

    __call__ = hook


def add(rows, module, inputs, output):
    rows.append(len(output))


@pytest.mark.parametrize(
    "hook_of",
    [lambda seen: seen.hook, lambda seen: seen, lambda seen: functools.partial(add, seen.rows)],
    ids=["method", "object", "partial"],
)
def test_hooks_of_all_replicas_write_to_the_same(model, hook_of):
    seen = Seen()
    model[0].register_forward_hook(hook_of(seen))
    model(batch()[0])
    assert seen.rows == [4, 3]


@pytest.mark.parametrize("partly", [False, True], ids=["method", "partial"])
def test_a_hook_that_is_a_method_of_the_module_is_each_replicas_own(partly):
    class Hooked(nn.Linear):
        def __init__(self):
            super().__init__(3, 3)
            self.inner = nn.Identity()
            keep = functools.partial(self.keep, factor=1) if partly else self.keep
            self.inner.register_forward_hook(keep)

        def keep(self, module, inputs, output, factor=1):
            self.rows = len(output) * factor

        def forward(self, x):
            self.inner(x)
            return super().forward(x) + self.rows

    bare = Hooked()
    model = DataParallel(bare, ["cpu"] * 2)
    model(torch.ones(5, 3))
    assert bare.rows == 3  # rows of the first shard
