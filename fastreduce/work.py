"""Collectives that run while the caller goes on: what ``async_op=True`` returns.

On the CPU one worker thread runs them, in the order in which they were begun; it needs Python's
global lock only at the beginning and the end. On GPUs every call returns when its work is queued,
so there the call itself is made at once, on the current streams.
"""

from __future__ import annotations

import functools
import os
import queue
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any, NoReturn

import torch

from fastreduce import _C
from fastreduce.kinds import is_number
from fastreduce.names import shown
from fastreduce.thread_modes import modes_of_this_thread

# Each call in flight keeps its tensors alive, so a loop that never waits would fill the memory
# (Dive into Deep Learning, "Asynchronous Computation"). Predicted to be more than overlap needs.
MAX_IN_FLIGHT = 32


def _room_for_calls() -> queue.SimpleQueue[None]:
    """One entry per call that may be in flight: each takes one and gives it back when it ends.

    Who waits for a SimpleQueue holds no lock. With a lock, a signal handler that interrupts the
    wait and begins a call of its own would wait for ever for the thread that it has interrupted.
    """
    room: queue.SimpleQueue[None] = queue.SimpleQueue()
    for _ in range(MAX_IN_FLIGHT):
        room.put(None)
    return room


in_flight: set[Future[None]] = set()
_room = _room_for_calls()
_lock = threading.Lock()
_worker: ThreadPoolExecutor | None = None
_thread = threading.local()


class _OneThread(ThreadPoolExecutor):
    """Looks for an idle thread at its first call only: for that it takes a lock written in Python,
    which Ctrl-C may leave taken, and then every later call would wait for ever."""

    def _adjust_thread_count(self) -> None:
        if not self._threads:
            super()._adjust_thread_count()


class Work:
    """A collective that was begun with ``async_op=True``; its tensors must be left alone until
    `wait` has returned.

    >>> import torch, fastreduce
    >>> x = [torch.ones(2), torch.ones(2)]
    >>> work = fastreduce.allreduce(x, async_op=True)
    >>> work.wait()
    True
    >>> x[0]
    tensor([2., 2.])
    """

    def __init__(self, done: Future[None], events: Iterable[torch.cuda.Event], results: Any):
        self._done, self._events, self._results = done, list(events), results

    def __getstate__(self) -> NoReturn:
        raise TypeError("Work: a call cannot be copied or pickled; wait() for it, and copy tensors")

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until the tensors have their results; return True.

        On GPUs the devices' current streams wait, and not the caller. Ctrl-C ends the wait, and not
        the work.

        Raises what the call would have raised without ``async_op``; TypeError for a ``timeout_s``
        that is no number, such as a timedelta; TimeoutError after ``timeout_s`` seconds, when the
        work goes on and may be waited for again; RuntimeError in a callback of another call's
        future: callbacks run in the thread that would do this work, so it would wait for ever.
        """
        seconds = _seconds(timeout_s)
        if timeout_s is None and _is_worker() and not self._done.done():
            raise RuntimeError(
                "wait: called in a callback of another collective's future, which runs in the "
                "thread that is to do this work, so it would wait for ever; wait outside of it"
            )
        if not wait([self._done], seconds).done:
            raise TimeoutError(
                f"wait: the collective is not done after {timeout_s} s; it goes on, so its tensors "
                "must still be left alone"
            )
        self._done.result()
        self._let_streams_wait()
        return True

    def _let_streams_wait(self) -> None:
        for event in self._events:
            torch.cuda.current_stream(event.device).wait_event(event)

    def is_completed(self) -> bool:
        """Whether the tensors have their results, or the call has failed."""
        return self._done.done() and all(
            event.query()  # type: ignore[no-untyped-call]
            for event in self._events
        )

    def get_future(self) -> torch.futures.Future[Any]:
        """A future of the tensors, for ``.then(...)``; it has the error if the call has failed.

        On GPUs the devices' current streams wait, as in `wait`.
        """
        future: torch.futures.Future[Any] = torch.futures.Future()

        def pass_on(done: Future[None]) -> None:
            error = done.exception()
            if error is None:
                self._let_streams_wait()  # in the caller's thread: calls on GPUs are made at once
                future.set_result(self._results)
            else:
                future.set_exception(error)

        self._done.add_done_callback(pass_on)
        return future


def begin(call: Callable[[], object], gpus: Iterable[torch.device], results: Any) -> Work:
    """Have the worker run ``call``. It is run here and now on GPUs, if this is the worker itself,
    and where torch is to see what this thread does (modes, traces).

    Waits where too much is in flight. A signal handler or a finalizer may come in the middle of
    this, in a thread that holds the locks: what it begins is run now, too.
    """
    numbers = sorted({gpu.index for gpu in gpus})
    done: Future[None] = Future()
    if numbers or _is_worker() or _begun_here() is not None or _C.is_watched():
        settle(done, call)
        error = done.exception()
        if error is not None and not isinstance(error, Exception):  # Ctrl-C, in this thread
            raise error
        streams = [] if error else map(torch.cuda.current_stream, numbers)
        return Work(done, [stream.record_event() for stream in streams], results)
    modes, cores = modes_of_this_thread(), torch.get_num_threads()

    def run() -> None:
        _C.use_cores(cores)  # a thread keeps those of its first operation
        with modes():
            call()

    done.add_done_callback(_leave)
    _thread.begun = done
    try:
        _hand_over(done, run)
    finally:
        _thread.begun = None
    return Work(done, [], results)


def _leave(done: Future[None]) -> None:
    in_flight.discard(done)
    if _room.qsize() < MAX_IN_FLIGHT:  # Ctrl-C may have come before the call took its entry
        _room.put(None)


def _hand_over(done: Future[None], run: Callable[[], object]) -> None:
    """Let the worker do ``run``, when there is room."""
    try:
        _room.get()
        with _lock:
            in_flight.add(done)
            _started_worker().submit(settle, done, run)
    except BaseException as error:  # Ctrl-C, too: nobody shall wait for what is not begun
        if done.cancel():
            done.set_running_or_notify_cancel()
        if isinstance(error, RuntimeError):
            raise RuntimeError(
                "async_op=True: found no thread for the call, as Python is ending or the system "
                "starts no more; leave async_op out"
            ) from error
        raise


def settle(done: Future[Any], call: Callable[[], Any]) -> None:
    """Make the call; whoever waits for ``done`` is told what came of it, whatever it raised. Not
    if it was cancelled: then whoever has done so tells them."""
    if done.cancelled() or not done.set_running_or_notify_cancel():
        return
    try:
        result = call()
    except BaseException as error:
        done.set_exception(error)
        del done, call  # the error's traceback holds this frame, and with it all that they hold
    else:
        done.set_result(result)


def _seconds(timeout_s: float | None) -> float | None:
    if timeout_s is None:
        return None
    if not is_number(timeout_s) or timeout_s != timeout_s:
        raise TypeError(
            f"wait: found timeout_s {shown(timeout_s)}, wanted a number of seconds, or None to "
            "wait as long as it takes"
        )
    # More, such as infinity, would be an OverflowError.
    return float(min(timeout_s, threading.TIMEOUT_MAX))


def finish() -> None:
    """Wait for all that is in flight. Errors stay with the calls that they belong to."""
    if not _is_worker():
        # Without what this thread was about to hand over when it was interrupted.
        begun_here = _begun_here()
        wait([done for done in list(in_flight) if done is not begun_here])


def _is_worker() -> bool:
    """Whether this is the worker: in a call, or in a callback of its future."""
    return hasattr(_thread, "is_worker")


def _begun_here() -> Future[None] | None:
    """What this thread is about to hand over to the worker."""
    return getattr(_thread, "begun", None)


def _started_worker() -> ThreadPoolExecutor:
    global _worker
    if _worker is None:
        mark = functools.partial(setattr, _thread, "is_worker", True)
        worker = _OneThread(1, thread_name_prefix="fastreduce", initializer=mark)
        try:
            worker.submit(int)  # starts the thread
            _worker = worker
        except BaseException:  # Ctrl-C, too, after which the executor may not know its thread
            worker.shutdown(wait=False)
            raise
    return _worker


def _forget_worker() -> None:
    # The worker may not have left yet for calls that were done, and it never will here.
    global _worker, _lock, _room
    _worker, _lock, _room = None, threading.Lock(), _room_for_calls()
    in_flight.clear()


def _finish_before_fork() -> None:
    # What is raised here Python prints, and forks all the same: with calls in the middle of locks.
    try:
        finish()
    except KeyboardInterrupt:
        _finish_before_fork()
        raise


# A forked process has the memory, but not the worker: what is in flight ends first. When Python
# ends, concurrent.futures waits for the worker.
os.register_at_fork(before=_finish_before_fork, after_in_child=_forget_worker)
