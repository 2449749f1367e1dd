"""Ctrl-C at bad moments: the module is as it was, and the next step is right."""

import contextlib
import functools
import itertools
import operator
import sys
import threading
import time
from pathlib import Path

import pytest
import torch
from interrupts import interrupted
from subprocesses import output_of
from torch import nn

from fastreduce import DataParallel
from fastreduce.parallel import replicas, sync_batchnorm
from fastreduce.parallel.attributes import Attributes
from fastreduce.parallel.worker import Worker


class Slow(nn.Linear):
    def forward(self, x):
        time.sleep(0.1)
        return super().forward(x)


@pytest.fixture
def interrupt(monkeypatch):
    """Raise KeyboardInterrupt in the next call of a method: instead of what it does, or so many
    seconds after it."""

    def once(kind, name, after_s=None):
        method = getattr(kind, name)

        def interrupted(*args):
            monkeypatch.setattr(kind, name, method)
            if after_s is not None:
                method(*args)
                if after_s:  # a sleep of 0 s would let the other thread begin
                    time.sleep(after_s)
            raise KeyboardInterrupt

        monkeypatch.setattr(kind, name, interrupted)

    return once


@pytest.mark.parametrize("last", ["norm", "slow"])
def test_when_a_thread_has_just_been_given_its_shard(interrupt, way, last):
    if last == "slow" and way == "one by one":
        pytest.skip("without layers at which shards meet, that takes no thread")
    layer = nn.BatchNorm1d(64) if last == "norm" else Slow(64, 64)
    net = nn.Sequential(nn.Linear(128, 64), layer)
    model = DataParallel(net, ["cpu", "cpu"], sync_batchnorm=last == "norm")
    X, own = torch.randn(8, 128), list(net.parameters())
    model(X)
    interrupt(Worker, "submit", 0 if last == "slow" else 0.05)  # when a shard waits for others
    with pytest.raises(KeyboardInterrupt):
        model(X)
    time.sleep(0.2)  # a shard that nobody has stopped would go on meanwhile
    assert all(map(operator.is_, net.parameters(), own))
    model(X).sum().backward()
    assert all(map(operator.is_, net.parameters(), own))
    assert net[0].weight.is_leaf and net[0].weight.grad is not None


def test_while_a_thread_is_made(interrupt):
    interrupt(threading.Thread, "start", 0)
    with pytest.raises(KeyboardInterrupt):
        Worker("interrupted")
    for thread in threading.enumerate():
        if thread.name == "interrupted":
            thread.join(20)
            assert not thread.is_alive()


def test_at_the_end_of_forward(interrupt):
    net = nn.Linear(64, 2)
    model, X = DataParallel(net, ["cpu", "cpu"]), torch.randn(8, 64)
    wanted = model(X)
    interrupt(Attributes, "keep")
    with pytest.raises(KeyboardInterrupt):
        model(X)
    assert torch.equal(model(X), wanted)


PARALLEL = str(Path(replicas.__file__).parent)
BY_LINE = replicas.__file__, sync_batchnorm.__file__


def is_moment(frame, event):
    """Whether Python would look for Ctrl-C here: where a function of fastreduce.parallel or of
    contextlib begins, and, in the files that change the module, before every line."""
    file = frame.f_code.co_filename
    begins = event == "call" and (file.startswith(PARALLEL) or file == contextlib.__file__)
    return begins or (event == "line" and file in BY_LINE)


def modes_of_this_thread():
    """Whether torch calls the modes of a thread: of functions, of operations."""
    key = torch._C.DispatchKey.Python
    excluded = torch._C._dispatch_tls_is_dispatch_key_excluded(key)
    return torch._C._get_torch_function_state(), excluded


# Where it comes while a generator is let go, Python says so and goes on.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(("sync", "every"), [(False, 1), (True, 7)])
def test_anywhere_in_forward(way, sync, every):
    if way == "one by one":
        torch.set_num_threads(1)  # thousands of small operations would wait for a busy core
    norm = nn.BatchNorm1d(4, track_running_stats=False)  # whose outputs are the same in all passes
    net = nn.Sequential(nn.Linear(8, 4), norm, nn.Dropout(0.1))
    model = DataParallel(net, ["cpu", "cpu"], sync_batchnorm=sync)
    X, own = torch.randn(6, 8), list(net.parameters())

    def seeded():
        torch.manual_seed(0)
        return model(X)

    wanted, modes = seeded(), modes_of_this_thread()
    for number in itertools.count(1, every):
        where = interrupted(functools.partial(model, X), number, is_moment)
        if where is None:
            break
        assert modes_of_this_thread() == modes, where
        for _ in range(2):
            assert all(map(operator.is_, net.parameters(), own)), where
            assert all("forward" not in vars(layer) for layer in net), where
            assert torch.equal(seeded(), wanted), where
    # From Python 3.12 on comprehensions are no calls.
    assert number > (300 if sys.version_info < (3, 12) else 250)


def test_parameters_that_are_refused_do_not_stay():
    net = nn.Linear(3, 2)
    model, own, X = DataParallel(net, ["cpu", "cpu"]), net.weight, torch.randn(4, 3)
    wanted = model(X)
    with torch.inference_mode():
        others = {name: torch.full_like(p, 7.0) for name, p in model.named_parameters()}
    for _ in range(2):
        with pytest.raises(ValueError, match="inference"):
            torch.func.functional_call(model, others, X)
        assert torch.equal(model(X), wanted)
        assert net.weight is own


HANDLED = """
    import faulthandler, signal, time, torch, fastreduce

    faulthandler.dump_traceback_later(60, exit=True)  # a hang is a failure
    fastreduce.parallel.at_once.LEAST_PARAMETERS = 0
    torch.set_num_threads({cores})

    class Slow(torch.nn.Linear):
        def forward(self, x):
            time.sleep(0.3)
            return super().forward(x)

    def evaluate(*_):
        try:
            model(X)
        except RuntimeError as error:
            print(error)

    model, X = fastreduce.DataParallel(Slow(4, 2), ["cpu", "cpu"]), torch.ones(6, 4)
    wanted = model(X)
    signal.signal(signal.SIGALRM, evaluate)
    signal.setitimer(signal.ITIMER_REAL, 0.15)
    assert torch.equal(model(X), wanted)
"""


@pytest.mark.parametrize(
    ("cores", "said"),
    [
        (2, "a signal handler or a finalizer has called the model in the middle of a forward pass"),
        (1, "forward has called the DataParallel that runs it"),  # which the same thread runs
    ],
)
def test_a_signal_handler_that_calls_the_model_does_not_wait_for_itself(cores, said):
    assert said in output_of(HANDLED.format(cores=cores))
