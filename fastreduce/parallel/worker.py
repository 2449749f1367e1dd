"""A thread that makes calls for others."""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any

from fastreduce import _C
from fastreduce.work import settle


class Worker:
    """A thread that makes the calls that are submitted to it, one after the other.

    It ends with the object. Executors of concurrent.futures take no calls any more when the main
    thread has ended, though other threads may still train.

    Args:
        cores: how many the operations of the thread use; None: as many as those of new threads do.
    """

    def __init__(self, name: str, cores: int | None = None):
        self._calls: SimpleQueue[Any] = SimpleQueue()
        # Before the thread starts: Ctrl-C may come while start() waits, and then leaves a thread
        # that nothing else would end.
        weakref.finalize(self, self._calls.put, None).atexit = False
        self._thread = threading.Thread(None, _run, name, (self._calls,), daemon=True)
        self._thread.start()
        if cores is not None:  # as a call, whose error is raised here and does not end the thread
            self.submit(functools.partial(_C.take_cores, cores)).result()

    def submit(self, call: Callable[[], Any], future: Future[Any] | None = None) -> Future[Any]:
        """Make the call. Who must know of it whenever Ctrl-C comes passes the future."""
        future = future or Future()
        self._calls.put((future, call))
        return future

    def end(self) -> None:
        """Wait until all calls have been made, and the thread has ended."""
        self._calls.put(None)
        self._thread.join()


def _run(calls: SimpleQueue[Any]) -> None:
    while (submitted := calls.get()) is not None:
        settle(*submitted)
        del submitted  # else it would be held until the next one comes
