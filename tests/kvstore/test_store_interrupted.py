"""Ctrl-C at any moment of a call: the store goes on, with its values before or after the call."""

import functools
import inspect
import itertools
from pathlib import Path

import pytest
import torch
from interrupts import interrupted

from fastreduce import KVStore, kvstore

FOLDER = str(Path(kvstore.__file__).parent)


def is_moment(frame, event):
    """Whether a function of the store begins or has ended, where Python looks for Ctrl-C. Not where
    a generator yields: what a trace raises there ends it without its ``finally``, and a real Ctrl-C
    comes in its caller."""
    yields = event == "return" and frame.f_code.co_flags & inspect.CO_GENERATOR
    is_ours = frame.f_code.co_filename.startswith(FOLDER)
    return event in ("call", "return") and is_ours and not yields


def momentum(store):
    store.set_optimizer(torch.optim.SGD, lr=0.5, momentum=0.5)


def push(store):
    store.push(["a", "b"], [[torch.ones(3), torch.ones(3)], [torch.ones(2), torch.ones(2)]])


def pushed_before():
    store = KVStore()
    momentum(store)
    store.init(["a", "b"], [torch.ones(3), torch.ones(2)])
    push(store)
    return store


def values(store):
    store.pull(["a", "b"], outs := [torch.empty(3), torch.empty(2)])
    return [outs[0].tolist(), outs[1].tolist()]


def then(*calls):
    """The values of a store after these calls."""
    store = pushed_before()
    for call in calls:
        call(store)
    return values(store)


@pytest.mark.parametrize("call", [push, momentum, lambda s: s.set_updater(print)])
def test_anywhere_in_a_call(call):
    ends, ends_of_pushes = [then(), then(call)], [then(push), then(call, push)]
    for number in itertools.count(1):
        store = pushed_before()
        where = interrupted(functools.partial(call, store), number, is_moment)
        if where is None:
            break
        assert torch.is_grad_enabled(), where
        assert values(store) in ends, where
        push(store)
        assert values(store) in ends_of_pushes, where
    assert number > 10
