"""The `Work` of `async_op=True`: waiting, futures, callbacks, and the order of calls in flight."""

import copy
import gc
import pickle
import threading
import weakref
from concurrent.futures import Future
from datetime import timedelta
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch
from reference import assert_same, noise, reduced

import fastreduce
from fastreduce import work as work_module
from fastreduce.work import MAX_IN_FLIGHT, Work, settle


@pytest.fixture
def gate(monkeypatch):
    """Holds the worker before each call until it is set."""
    opened = threading.Event()
    run = fastreduce.collectives._C.run

    def held(*args):
        if hasattr(work_module._thread, "is_worker"):
            assert opened.wait(30)
        run(*args)

    class Extension:
        def __getattr__(self, name):
            return held if name == "run" else getattr(fastreduce._C, name)

    monkeypatch.setattr(fastreduce.collectives, "_C", Extension())
    yield opened
    opened.set()
    work_module.finish()


def test_it_returns_before_the_work_is_done(gate):
    tensors = [torch.ones(3), torch.ones(3)]
    begun = fastreduce.allreduce(tensors, async_op=True)
    assert not begun.is_completed() and tensors[0].tolist() == [1, 1, 1]
    gate.set()
    begun.wait()
    assert begun.is_completed() and tensors[0].tolist() == [2, 2, 2]


def test_wait_may_end_early_and_be_repeated(gate):
    tensors = [torch.ones(3), torch.ones(3)]
    begun = fastreduce.allreduce(tensors, async_op=True)
    with pytest.raises(TimeoutError, match=r"not done after 0\.01 s; it goes on"):
        begun.wait(0.01)
    gate.set()
    assert begun.wait(30) and tensors[0].tolist() == [2, 2, 2]


@pytest.mark.parametrize("timeout_s", [timedelta(seconds=3), "3", float("nan"), True])
def test_a_timeout_that_is_no_number_is_refused(gate, timeout_s):
    begun = fastreduce.allreduce(noise(2, (10,), torch.float32), async_op=True)
    with pytest.raises(TypeError, match=r"wait: found timeout_s .*, wanted a number of seconds"):
        begun.wait(timeout_s)
    gate.set()
    assert begun.wait()


@pytest.mark.parametrize("timeout_s", [float("inf"), 1e30])
def test_a_timeout_may_be_longer_than_the_clock_goes(gate, timeout_s):
    begun = fastreduce.allreduce(noise(2, (10,), torch.float32), async_op=True)
    threading.Timer(0.05, gate.set).start()
    assert begun.wait(timeout_s)


def test_a_second_call_on_tensors_in_flight_comes_after_the_first(gate):
    tensors = [torch.ones(3), torch.ones(3)]
    fastreduce.allreduce(tensors, async_op=True)
    again = fastreduce.allreduce(tensors, async_op=True)
    threading.Timer(0.05, gate.set).start()
    fastreduce.allreduce(tensors)  # waits for both
    assert again.is_completed() and tensors[1].tolist() == [8, 8, 8]


def over_lists(tensors):
    fastreduce.broadcast(tensors, 1)


SECOND_CALLS = {
    "eager": over_lists,
    "compiled": torch.compile(over_lists, backend="eager", fullgraph=True),
    "by inductor": torch.compile(over_lists, backend="inductor", fullgraph=True),
    "the operator": lambda x: torch.ops.fastreduce.collective_(
        "broadcast", x, [], 2, "sum", 1, "auto"
    ),
}


@pytest.mark.parametrize("waits", [True, False], ids=["it waits", "control: it does not"])
@pytest.mark.parametrize("name", SECOND_CALLS)
def test_every_kind_of_second_call_waits_for_the_first(gate, monkeypatch, name, waits):
    if not waits:
        monkeypatch.setattr(fastreduce.collectives, "finish", lambda: None)
    SECOND_CALLS[name]([torch.ones(3), torch.ones(3)])  # compiles
    tensors = [torch.ones(3), torch.full((3,), 2.0)]
    begun = fastreduce.broadcast(tensors, async_op=True)
    if waits:
        threading.Timer(0.05, gate.set).start()
    SECOND_CALLS[name](tensors)
    assert begun.is_completed() is waits
    assert tensors[0].tolist() == ([1, 1, 1] if waits else [2, 2, 2])


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickle.dumps])
def test_copies_are_refused(copied):
    work = fastreduce.allreduce([torch.ones(2), torch.ones(2)], async_op=True)
    with pytest.raises(TypeError, match=r"^Work: a call cannot be copied .* wait\(\) for it"):
        copied(work)
    work.wait()


def test_the_callers_list_may_change(gate):
    tensors = [torch.ones(3), torch.ones(3)]
    first = tensors[0]
    begun = fastreduce.allreduce(tensors, async_op=True)
    tensors.clear()
    gate.set()
    begun.wait()
    assert first.tolist() == [2, 2, 2]


def test_as_many_in_flight_as_there_is_room(gate):
    tensors = [torch.ones(3), torch.ones(3)]
    for _ in range(MAX_IN_FLIGHT):
        fastreduce.broadcast(tensors, async_op=True)
    another = threading.Thread(
        target=fastreduce.broadcast, args=[tensors], kwargs={"async_op": True}
    )
    another.start()
    another.join(0.1)
    assert another.is_alive() and len(work_module.in_flight) == MAX_IN_FLIGHT
    gate.set()
    another.join(30)
    assert not another.is_alive()


def test_a_future_of_the_tensors():
    tensors = noise(2, (100,), torch.float32)
    wanted = reduced("sum", tensors)
    future = fastreduce.allreduce(tensors, async_op=True).get_future()
    assert_same(future.then(lambda done: done.value()[0]).wait(), wanted)


def test_a_callback_may_begin_calls_and_wait_for_them(gate):
    x, y = ([torch.ones(3), torch.ones(3)] for _ in range(2))

    def more(_):
        begun = [fastreduce.allreduce(y, "max", async_op=True) for _ in range(MAX_IN_FLIGHT + 1)]
        return begun[-1].wait()

    future = fastreduce.allreduce(x, async_op=True).get_future().then(more)
    gate.set()
    done = threading.Event()
    future.add_done_callback(lambda _: done.set())
    assert done.wait(30) and future.value() is True


def test_a_callback_that_waits_for_what_comes_after_it_is_told_so(gate):
    x, y = ([torch.ones(3), torch.ones(3)] for _ in range(2))
    first = fastreduce.allreduce(x, async_op=True)
    second = fastreduce.allreduce(y, async_op=True)
    found = []

    def wait_for_the_second(_):
        with pytest.raises(RuntimeError, match="wait: called in a callback of another"):
            second.wait()
        found.append("an error")

    first.get_future().add_done_callback(wait_for_the_second)
    gate.set()
    second.wait(30)
    assert found == ["an error"] and y[0].tolist() == [2, 2, 2]


def test_of_a_future_too_streams_wait(monkeypatch):
    """Those of the GPU, which are current where it is asked for: what follows may be put there."""
    waited = []
    event, stream, done = SimpleNamespace(device=torch.device("cuda:0")), Mock(), Future()
    stream.wait_event = waited.append
    monkeypatch.setattr(torch.cuda, "current_stream", {event.device: stream}.__getitem__)
    done.set_result(None)
    future = Work(done, [event], "results").get_future()
    future.then(lambda ended: waited.append(ended.value())).wait()
    assert waited == [event, "results"]


def test_a_call_that_fails_is_held_by_no_cycle():
    """It would keep the tensors of the call until Python looks for cycles."""
    done = Future()
    held = weakref.ref(done)
    gc.disable()
    try:
        settle(done, torch.ones(2).item)
        assert isinstance(done.exception(), RuntimeError)
        del done
        assert held() is None
    finally:
        gc.enable()
