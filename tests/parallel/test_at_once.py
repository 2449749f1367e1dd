"""Replicas on the CPU run at the same time, wherever nothing but the clock shows it."""

import copy
import gc
import os
import sys
import textwrap
import threading
import weakref
from contextvars import ContextVar

import pytest
import torch
import torch.nn.functional as F
from models import assert_same_gradients, batch
from noting import SEEN, Noting, run_at_once, step
from subprocesses import output_of
from torch import nn

from fastreduce import _C, DataParallel

VARIABLE = ContextVar("VARIABLE", default="nobody's")


@pytest.fixture
def way():
    return "at once"


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


def tasks() -> set[str]:
    return {*os.listdir("/proc/self/task")}


def test_threads_of_openmp_do_not_wait_beside_them():
    model = DataParallel(Noting(), ["cpu"] * 2)
    assert run_at_once(model)
    before = tasks()
    torch.ones(1 << 20).add_(1)
    others = tasks() - before
    assert others  # control: one waits for the next operation

    waiting = []
    step(model, lambda: waiting.append(tasks() & others))
    assert waiting == [set(), set()]


def test_they_follow_another_number_of_cores():
    model = DataParallel(Noting(), ["cpu"] * 2)
    assert run_at_once(model)
    torch.set_num_threads(6)
    step(model)
    assert [own for _, own in SEEN] == [3, 3]


def test_a_thread_that_cannot_take_its_cores_is_told_of(monkeypatch):
    """As where the system starts no more threads; the shards would wait for it."""

    def fails(_):
        raise OSError("Resource temporarily unavailable")

    raised = []

    def call():
        with pytest.raises(OSError, match="unavailable"):
            model(torch.zeros(4, 6))
        raised.append(True)

    model = DataParallel(nn.Linear(6, 5), ["cpu"] * 2)
    with monkeypatch.context() as patch:
        patch.setattr(_C, "take_cores", fails)
        thread = threading.Thread(target=call, daemon=True)
        thread.start()
        thread.join(timeout=60)
    assert raised
    assert run_at_once(DataParallel(Noting(), ["cpu"] * 2))


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


def test_what_a_step_has_used_is_free_without_the_garbage_collector():
    held = []

    class Holding(Noting):
        def forward(self, x):
            held.append(weakref.ref(x))
            return super().forward(x)

    model = DataParallel(Holding(), ["cpu"] * 2)
    gc.disable()
    try:
        assert run_at_once(model)
        assert [x() for x in held] == [None] * len(held)
    finally:
        gc.enable()


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


def test_where_no_thread_starts_shards_run_one_after_the_other():
    """From Python 3.12 on none does when the main thread has ended."""
    refused = """
        import threading

        class Refused(threading.Thread):
            def start(self):
                if self.name.startswith("fastreduce"):
                    raise RuntimeError("can't create new thread at interpreter shutdown")
                super().start()

        threading.Thread = Refused
    """
    assert output_of(textwrap.dedent(refused) + STEPS) == "trained"


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
