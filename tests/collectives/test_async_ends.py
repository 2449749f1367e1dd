"""`async_op=True` where Python ends, forks or is interrupted."""

import threading

import pytest
import torch
from subprocesses import output_of

import fastreduce
from fastreduce import work as work_module
from fastreduce.work import MAX_IN_FLIGHT

MANY = """
import torch, fastreduce
x = [torch.ones(3_000_000), torch.ones(3_000_000)]
begun = [fastreduce.allreduce(x, "max", async_op=True) for _ in range(20)]
"""

NO_THREAD = (
    "async_op=True: found no thread for the call, as Python is ending or the system starts no "
    "more; leave async_op out"
)


def test_python_ends_with_work_in_flight():
    assert output_of(MANY + "print('end')").strip() == "end"


@pytest.mark.sweep("processes")
def test_python_that_ends_begins_nothing_more():
    code = (
        MANY
        + """
import atexit
def late():
    try:
        fastreduce.allreduce(x, "max", async_op=True)
    except RuntimeError as error:
        print(error)
    fastreduce.allreduce(x)
    print(x[0][0].item())
atexit.register(late)
"""
    )
    assert output_of(code).splitlines() == [NO_THREAD, "2.0"]


@pytest.mark.sweep("processes")
def test_a_forked_child_has_the_results_and_a_worker_of_its_own():
    code = (
        MANY
        + """
import os
torch.set_num_threads(1)
child = os.fork()
if child == 0:
    assert all(work.is_completed() for work in begun)
    y = [torch.ones(2), torch.ones(2)]
    assert fastreduce.allreduce(y, async_op=True).wait(30)
    os._exit(7 if y[0][0] == 2 else 1)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    )
    assert output_of("import torch; torch.set_num_threads(1)\n" + code).strip() == "7"


def test_ctrl_c_while_a_fork_waits_for_calls_does_not_let_it_go_on_before():
    code = """
import os, signal, sys, torch, fastreduce
sys.unraisablehook = lambda raised: print(raised.exc_type.__name__, flush=True)
x = [torch.ones(20_000_000), torch.ones(20_000_000)]
begun = [fastreduce.allreduce(x, "max", async_op=True) for _ in range(30)]
signal.signal(signal.SIGALRM, signal.default_int_handler)
signal.setitimer(signal.ITIMER_REAL, 0.05)
child = os.fork()
if child == 0:
    os._exit(7 if all(work.is_completed() for work in begun) else 1)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    assert output_of(code).split() == ["KeyboardInterrupt", "7"]


def test_ctrl_c_ends_the_wait_and_not_the_work():
    code = """
import os, signal, threading, torch, fastreduce
x = [torch.ones(20_000_000), torch.ones(20_000_000)]
begun = [fastreduce.allreduce(x, "max", async_op=True) for _ in range(30)]
try:
    threading.Timer(0.05, os.kill, [os.getpid(), signal.SIGINT]).start()
    begun[-1].wait()
except KeyboardInterrupt:
    begun[-1].wait()
    print("interrupted", all(work.is_completed() for work in begun))
"""
    assert output_of(code).strip() == "interrupted True"


def test_ctrl_c_while_the_thread_starts_leaves_none_behind():
    """It would work off calls beside the next one, and Python would wait for it at the end."""
    code = """
import faulthandler, threading, torch, fastreduce
faulthandler.dump_traceback_later(60, exit=True)  # a hang is a failure
x, start = [torch.ones(2), torch.ones(2)], threading.Thread.start
def interrupted(thread):
    threading.Thread.start = start
    start(thread)
    raise KeyboardInterrupt
threading.Thread.start = interrupted
try:
    fastreduce.allreduce(x, async_op=True)
except KeyboardInterrupt:
    left = threading.enumerate()[1:]
    [thread.join(20) for thread in left]
    print(len(left), threading.active_count())
fastreduce.allreduce(x, async_op=True).wait()
print(x[0].tolist())
"""
    assert output_of(code).splitlines() == ["1 1", "[2.0, 2.0]"]


def test_the_error_where_no_thread_starts_names_the_limit_of_the_system_too():
    code = """
import threading, torch, fastreduce
def start(thread):
    raise RuntimeError("can't start new thread")
threading.Thread.start = start
try:
    fastreduce.allreduce([torch.ones(2), torch.ones(2)], async_op=True)
except RuntimeError as error:
    print(error)
"""
    assert output_of(code).strip() == NO_THREAD


@pytest.mark.parametrize("queued", [False, True])
def test_an_interruption_while_a_call_begins_takes_no_room(monkeypatch, queued):
    """Ctrl-C just before the worker has the call, or just after."""
    tensors = [torch.ones(3), torch.ones(3)]
    fastreduce.broadcast(tensors, async_op=True).wait()
    worker = work_module._worker

    class Interrupted:
        def submit(self, *call):
            if queued:
                worker.submit(*call)
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(work_module, "_worker", Interrupted())
        for _ in range(MAX_IN_FLIGHT + 1):
            with pytest.raises(KeyboardInterrupt):
                fastreduce.allreduce(tensors, async_op=True)
            work_module.finish()
    assert not work_module.in_flight
    assert fastreduce.broadcast(tensors, async_op=True).wait()


@pytest.mark.parametrize("taken", [False, True])
def test_an_interruption_while_a_call_waits_for_room_takes_none(monkeypatch, taken):
    """Ctrl-C just before the call has its entry, or just after."""
    tensors, room = [torch.ones(3), torch.ones(3)], work_module._room
    fastreduce.broadcast(tensors, async_op=True).wait()

    class Interrupted:
        put, qsize = room.put, room.qsize

        def get(self):
            if taken:
                room.get(timeout=20)
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(work_module, "_room", Interrupted())
        for _ in range(MAX_IN_FLIGHT + 1):
            with pytest.raises(KeyboardInterrupt):
                fastreduce.allreduce(tensors, async_op=True)
    assert fastreduce.broadcast(tensors, async_op=True).wait(20)
    work_module._worker.submit(int).result(20)  # after the worker has given the entry back
    assert room.qsize() == MAX_IN_FLIGHT


def test_no_call_but_the_first_takes_a_lock_that_an_interruption_may_leave_taken(monkeypatch):
    tensors = [torch.ones(3), torch.ones(3)]
    fastreduce.broadcast(tensors, async_op=True).wait()

    def acquire(*_, **__):
        raise AssertionError("Ctrl-C here would stop all later calls")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Semaphore, "acquire", acquire)
        assert fastreduce.broadcast(tensors, async_op=True).wait(20)


@pytest.mark.parametrize("how", ["", ", async_op=True"])
def test_a_signal_handler_may_come_while_a_call_waits_for_room(how):
    code = f"""
import signal, torch, fastreduce
torch.set_num_threads(1)
y = [torch.ones(3), torch.ones(3)]
handled = []
def handle(*_):
    handled.append(len(fastreduce.work.in_flight) > 1)
    work = fastreduce.allreduce(y{how})
    assert work is None or work.wait(30)
signal.signal(signal.SIGALRM, handle)
x = [torch.ones(3_000_000), torch.ones(3_000_000)]
signal.setitimer(signal.ITIMER_REAL, 0.1)
while not handled:
    fastreduce.allreduce(x, "max", async_op=True)
print(y[0].tolist(), handled)
"""
    assert output_of(code).strip() == "[2.0, 2.0, 2.0] [True]"
