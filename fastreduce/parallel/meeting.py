"""Runs the shards of a batch, one at a time or at once. Where a layer needs all, they meet."""

from __future__ import annotations

import contextvars
import functools
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, TypeAlias

import torch

from fastreduce import _C
from fastreduce.parallel.worker import Worker
from fastreduce.thread_modes import modes_of_this_thread

Turn: TypeAlias = "Callable[[int], AbstractContextManager[None]]"
"""What a shard needs around it while it runs: its parameters, its random numbers."""


@dataclass
class Question:
    """What a shard brings to a meeting: the place where it is, and its part of the answer."""

    place: str
    part: Any


@dataclass
class _Result:
    value: Any


class _Stop(BaseException):
    """Ends the thread of a shard whose batch has failed."""


_this_thread = threading.local()


def one_by_one(calls: Sequence[Callable[[], Any]], turn: Turn) -> list[Any]:
    """The results of the calls, each in its turn."""
    results = []
    for shard, call in enumerate(calls):
        with turn(shard):
            results.append(call())
    return results


def together(
    calls: Sequence[Callable[[], Any]],
    turn: Turn,
    answer: Callable[[list[Any]], Sequence[Any]],
    workers: Sequence[Worker],
    at_once: bool,
) -> list[Any]:
    """The results of the calls, which may `meet`: ``answer`` makes of all parts one answer each.

    Every call has one of the ``workers``. Unless they run ``at_once``, only one does at a time, in
    ascending order. An error of one ends all; that of the first of them is raised.
    """
    if at_once:
        calls = [functools.partial(_in_turn, turn, shard, call) for shard, call in enumerate(calls)]
        turn = nothing
    shards = [_Shard(*pair) for pair in zip(calls, workers, strict=False)]
    try:
        answers: Sequence[Any] = [None] * len(shards)
        while True:
            said = _round(shards, answers, turn, at_once)
            _check_places(said)
            results = [x.value for x in said if isinstance(x, _Result)]
            if results:
                return results
            answers = answer([x.part for x in said if isinstance(x, Question)])
    finally:
        for shard in shards:
            shard.stop()
        for shard in shards:
            shard.end()


def nothing(_: int) -> AbstractContextManager[None]:
    """The turn of shards that need nothing around them."""
    return nullcontext()


def meet(place: str, part: Any) -> Any:
    """In a call that `together` runs: wait for the other shards, and return this one's answer."""
    shard: _Shard = _this_thread.shard
    return shard.ask(Question(place, part))


def is_shard() -> bool:
    """Whether this thread is one of those that `together` runs."""
    return hasattr(_this_thread, "shard")


def began_with() -> tuple[bool, Any]:
    """Where the calls were made: whether gradients were on, and the hooks for saved tensors."""
    shard: _Shard = _this_thread.shard
    return shard.began_with


def saved_tensors_hooks() -> Any:
    """The innermost of this thread; a false value if there are none."""
    return torch._C._autograd._top_saved_tensors_default_hooks(True)


def as_in_this_thread(call: Callable[[], Any]) -> Callable[[], Any]:
    """The same call, for another thread: all that is set for this thread, it finds there."""
    state, modes, context = _C.ThreadState(), modes_of_this_thread(), contextvars.copy_context()

    def run() -> Any:
        with state, modes():
            return call()

    return functools.partial(context.run, run)


class _Shard:
    """A coroutine made of a thread, because a layer cannot be a generator."""

    def __init__(self, call: Callable[[], Any], worker: Worker):
        self._call, self._worker = call, worker
        self._run_as_here: Callable[[], None] | None = as_in_this_thread(self._run)
        self.began_with = torch.is_grad_enabled(), saved_tensors_hooks()
        self._said: SimpleQueue[Any] = SimpleQueue()
        self._answers: SimpleQueue[Any] = SimpleQueue()
        self._running: Future[None] | None = None

    def go_on(self, answer: Any) -> None:
        """Begin, or take this answer to the last question."""
        if self._run_as_here is not None:
            call, self._run_as_here = self._run_as_here, None  # else a cycle would keep its tensors
            self._running = Future()
            self._worker.submit(call, self._running)
        else:
            self._answers.put(answer)

    def listen(self) -> Question | _Result:
        """Wait for the next question, or the end."""
        said = self._said.get()
        if isinstance(said, BaseException):
            try:
                raise said
            finally:
                del said  # its traceback holds this frame, and with it the shard's tensors
        found: Question | _Result = said
        return found

    def ask(self, question: Question) -> Any:
        self._said.put(question)
        answer = self._answers.get()
        if isinstance(answer, _Stop):
            raise answer
        return answer

    def stop(self) -> None:
        self._answers.put(_Stop())

    def end(self) -> None:
        """Wait until it has stopped, if it has begun."""
        if self._running is not None and not self._running.cancel():
            self._running.result()
        self._said = SimpleQueue()  # a new one: errors in the old one hold the shard's tensors

    def _run(self) -> None:
        _this_thread.shard = self
        try:
            self._said.put(_Result(self._call()))
        except BaseException as error:  # whatever forward raises goes to the caller
            self._said.put(error)
        finally:
            del _this_thread.shard


def _in_turn(turn: Turn, shard: int, call: Callable[[], Any]) -> Any:
    with turn(shard):
        return call()


def _round(
    shards: Sequence[_Shard], answers: Sequence[Any], turn: Turn, at_once: bool
) -> list[Question | _Result]:
    """What all shards say next."""
    if at_once:
        for shard, answer in zip(shards, answers, strict=True):
            shard.go_on(answer)
        return [shard.listen() for shard in shards]
    said = []
    for number, (shard, answer) in enumerate(zip(shards, answers, strict=True)):
        with turn(number):
            shard.go_on(answer)
            said.append(shard.listen())
    return said


def _check_places(said: Sequence[Question | _Result]) -> None:
    places = [x.place if isinstance(x, Question) else "the end of forward" for x in said]
    for shard, place in enumerate(places):
        if place != places[0]:
            raise ValueError(
                f"DataParallel: shard {shard} is at {place}, but shard 0 at {places[0]}; with "
                "sync_batchnorm=True all shards must go through the same BatchNorm layers in the "
                "same order"
            )
