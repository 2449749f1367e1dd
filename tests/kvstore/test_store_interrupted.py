"""Ctrl-C at any moment of a call: the store goes on, with its values before or after the call."""

import inspect
import itertools
import sys
from pathlib import Path

import pytest
import torch

from fastreduce import KVStore, kvstore

FOLDER = str(Path(kvstore.__file__).parent)


class CtrlC:
    """For sys.settrace: raises KeyboardInterrupt the n-th time that a function of the store begins
    or has ended, which are moments when Python looks for Ctrl-C. Not where a generator yields: what
    a trace raises there ends it without its ``finally``, and a real Ctrl-C comes in its caller."""

    def __init__(self, number):
        self._left, self.where = number, None

    def __call__(self, frame, event, _):
        yields = event == "return" and frame.f_code.co_flags & inspect.CO_GENERATOR
        is_ours = frame.f_code.co_filename.startswith(FOLDER)
        if event in ("call", "return") and is_ours and not yields:
            self._left -= 1
            if self._left == 0:
                self.where = f"{frame.f_code.co_name}, {event}"
                raise KeyboardInterrupt
        return self


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
        store, ctrl_c = pushed_before(), CtrlC(number)
        sys.settrace(ctrl_c)
        try:
            call(store)
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(None)
        if ctrl_c.where is None:
            break
        assert torch.is_grad_enabled(), ctrl_c.where
        assert values(store) in ends, ctrl_c.where
        push(store)
        assert values(store) in ends_of_pushes, ctrl_c.where
    assert number > 10
