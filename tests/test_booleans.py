"""Flags of public calls are True or False: a string such as "no" would be taken for True."""

import dataclasses

import pytest
import torch
from torch import nn

import fastreduce
from fastreduce.plan.sizes import over_sizes
from fastreduce.plan.tune import measure
from fastreduce.training.config import Config
from fastreduce.training.trainer import Trainer

X = [torch.ones(4), torch.ones(4)]
CPU2 = (torch.device("cpu"),) * 2
CALLS = {
    "allreduce": (lambda **flag: fastreduce.allreduce(X, **flag), "async_op"),
    "reduce": (lambda **flag: fastreduce.reduce(X, **flag), "async_op"),
    "broadcast": (lambda **flag: fastreduce.broadcast(X, **flag), "async_op"),
    "reduce_scatter": (lambda **flag: fastreduce.reduce_scatter(X, X, **flag), "async_op"),
    "all_gather": (lambda **flag: fastreduce.all_gather(X, X, **flag), "async_op"),
    "DataParallel": (lambda **flag: fastreduce.DataParallel(nn.Linear(1, 1), **flag), "overlap"),
    "simulate": (lambda **flag: fastreduce.simulate("ring", "book-pcie4", 4, **flag), "verify"),
    "measure": (lambda **flag: measure(**flag), "progress"),
    "over_sizes": (lambda **flag: over_sizes("1MB:4MB", **flag), "progress"),
    "synthesize": (lambda **flag: fastreduce.synthesize("book-pcie4", 4, **flag), "progress"),
    "Trainer": (lambda **flag: Trainer(None, None, **flag), "progress"),
    "Config": (lambda **flag: Config(CPU2, **flag), "compile"),
    "Program": (
        lambda **flag: dataclasses.replace(fastreduce.algorithms.ring(2), **flag).verify(),
        "whole_tensors",
    ),
}


@pytest.mark.parametrize("value", ["yes", "", 1, 0, None])
@pytest.mark.parametrize("name", CALLS)
def test_others_are_refused(name, value):
    call, flag = CALLS[name]
    with pytest.raises(TypeError, match=f"^{name}: found {flag}={value!r}, wanted True or False$"):
        call(**{flag: value})
    assert all(torch.equal(x, torch.ones(4)) for x in X)
