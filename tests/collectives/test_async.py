"""`async_op=True`: the results and errors of the call that waits, in another thread."""

import threading
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from reference import assert_same, noise, reduced, threads

import fastreduce
from fastreduce.work import Work

CALLS = {
    "allreduce": lambda x, **how: fastreduce.allreduce(x, **how),
    "allreduce of lists": lambda x, **how: fastreduce.allreduce([[t] for t in x], **how),
    "allreduce of generators": lambda x, **how: fastreduce.allreduce((iter([t]) for t in x), **how),
    "allreduce of arrays": lambda x, **how: fastreduce.allreduce([t.numpy() for t in x], **how),
    "ring": lambda x, **how: fastreduce.allreduce(x, "max", algorithm="ring", **how),
    "reduce": lambda x, **how: fastreduce.reduce(x, 1, **how),
    "broadcast": lambda x, **how: fastreduce.broadcast(x, 1, **how),
    "reduce_scatter": lambda x, **how: fastreduce.reduce_scatter(
        [x[0][:500], x[1][500:]], x, **how
    ),
    "all_gather": lambda x, **how: fastreduce.all_gather(x, [x[0][:500], x[1][500:]], **how),
}


@pytest.mark.parametrize("name", CALLS)
def test_the_result_is_that_of_the_call_that_waits(name):
    tensors = noise(2, (1000,), torch.float32)
    same = [t.clone() for t in tensors]
    begun = CALLS[name](tensors, async_op=True)
    assert isinstance(begun, Work) and begun.wait() is True and begun.is_completed()
    assert CALLS[name](same) is None
    for found, wanted in zip(tensors, same, strict=True):
        assert_same(found, wanted)


BAD = {
    "shapes": (lambda: [torch.ones(3), torch.ones(4)], ValueError, "every rank needs the same sh"),
    "None": (lambda: [torch.ones(3), None], TypeError, "rank 1, tensor 0 is None"),
    "no list": (lambda: 3, TypeError, "want a list"),
    "leaves": (lambda: [torch.ones(3, requires_grad=True)] * 1, RuntimeError, "a leaf Variable"),
}


@pytest.mark.parametrize("name", BAD)
def test_errors_come_from_wait(name):
    make, error, words = BAD[name]
    begun = fastreduce.allreduce(make(), async_op=True)
    for _ in range(2):
        with pytest.raises(error, match=words):
            begun.wait()
    with pytest.raises(error, match=words):
        begun.get_future().wait()
    assert begun.is_completed()


def test_the_callers_grad_mode_holds_in_the_worker():
    x = [torch.ones(3, requires_grad=True), torch.ones(3, requires_grad=True)]
    with torch.no_grad():
        fastreduce.allreduce(x, async_op=True).wait()
    assert x[0].tolist() == [2, 2, 2]


def test_the_callers_number_of_threads_holds_in_the_worker():
    seen = []

    class Array(np.ndarray):
        def __dlpack__(self, **how):  # which the worker takes
            seen.append(torch.get_num_threads())
            return super().__dlpack__(**how)

    for count in (2, 1, 3):
        with threads(count):
            arrays = [np.ones(3).view(Array), np.ones(3).view(Array)]
            fastreduce.allreduce(arrays, async_op=True).wait()
            assert set(seen) == {count} and torch.get_num_threads() == count
        seen.clear()


def test_arrays_are_written_in_place():
    arrays = [np.ones(3), np.ones(3)]
    fastreduce.allreduce(arrays, async_op=True).wait()
    assert arrays[1].tolist() == [2, 2, 2]


def test_calls_from_several_threads():
    ranks = [noise(3, (500,), torch.float32) for _ in range(6)]
    wanted = [reduced("sum", tensors) for tensors in ranks]
    begun: list = [None] * 6

    def begin(i):
        begun[i] = fastreduce.allreduce(ranks[i], async_op=True)

    started = [threading.Thread(target=begin, args=[i]) for i in range(6)]
    for thread in started:
        thread.start()
    for thread in started:
        thread.join()
    for work, tensors, total in zip(begun, ranks, wanted, strict=True):
        work.wait()
        assert_same(tensors[0], total)


def test_what_watches_this_threads_operations_sees_the_call():
    """This mode keeps what autograd needs of a tensor that is written."""
    with torch.autograd.graph.allow_mutation_on_saved_tensors():
        weight, saved = torch.ones(3, requires_grad=True), torch.full((3,), 2.0)
        loss = (weight * saved).sum()
        fastreduce.allreduce([saved, torch.ones(3)], async_op=True).wait()
        loss.backward()
    assert weight.grad.tolist() == [2.0] * 3
    assert saved.tolist() == [3.0] * 3


class OnGpu:
    """An array of another library on GPU 1, which has a current stream in each thread."""

    def __init__(self):
        self.asked_by = set()

    def __dlpack_device__(self):
        return (2, 1)

    def __dlpack__(self, **_):
        self.asked_by.add(threading.get_ident())
        raise BufferError("there is no such GPU")


def test_arrays_on_gpus_are_taken_in_the_callers_thread():
    arrays = [OnGpu(), OnGpu()]
    work = fastreduce.allreduce(arrays, async_op=True)
    with pytest.raises(ValueError, match="rank 0, tensor 0 cannot be taken through __dlpack__"):
        work.wait()
    assert arrays[0].asked_by == {threading.get_ident()}


def test_streams_of_arrays_gpus_are_waited_for(monkeypatch):
    monkeypatch.setattr(fastreduce.collectives, "_C", Mock())
    streams = {1: Mock()}
    monkeypatch.setattr(torch.cuda, "current_stream", streams.__getitem__)
    work = fastreduce.allreduce([OnGpu(), OnGpu()], async_op=True)
    assert work._events == [streams[1].record_event()]
