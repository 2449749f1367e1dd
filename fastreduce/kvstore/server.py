"""What a rank of "dist_async" does for the others: it keeps rows, updates them, hands them out."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor
from torch.distributed import rpc
from torch.futures import Future

import fastreduce
from fastreduce.kvstore.entry import Key
from fastreduce.kvstore.shards import Shards
from fastreduce.kvstore.updates import UpdaterFailed, divide, fold_of


@dataclass
class _Push:
    """One that has come, and is answered when no worker is too far behind."""

    worker: int
    steps: dict[Key, int] = field(default_factory=dict)  # how often the worker has pushed a key
    errors: list[str] = field(default_factory=list)
    done: Future[list[str]] = field(default_factory=Future)


class Server:
    """One rank's rows. Workers call its methods from other processes, in any order.

    A push is a step of its worker. It is answered as soon as every other worker that has not left
    has taken all steps but the last ``staleness``. With a staleness of 0, what all workers push in
    a step is one update, reduced in the order of their ranks, as in "dist_sync"; else each push is
    an update of its own.

    Source: Ho et al., "More Effective Distributed ML via a Stale Synchronous Parallel Parameter
    Server", 2013, for the bound on staleness.
    """

    def __init__(
        self,
        shards: Shards,
        *,
        workers: int,
        staleness: float,
        op: str,
    ) -> None:
        self._shards = shards
        self._staleness, self._op = staleness, op
        self._present = set(range(workers))
        self._steps: defaultdict[Key, Counter[int]] = defaultdict(Counter)
        self._pushes: list[_Push] = []
        # With a staleness of 0, by key and step: what workers have pushed, of how many replicas.
        self._collected: dict[tuple[Key, int], dict[int, tuple[Tensor, int]]] = {}
        self._ended: set[int] = set()
        self._all_left: Future[list[int]] = Future()
        self._lock = shards.lock  # of all above, too

    def push(self, worker: int, values: Mapping[Key, Tensor], replicas: int) -> Future[list[str]]:
        """Update this rank's rows of keys; answers with what went wrong."""
        push = _Push(worker)
        with self._lock:
            self._pushes.append(push)
            for key, rows in values.items():
                self._steps[key][worker] += 1
                push.steps[key] = step = self._steps[key][worker]
                self._collected.setdefault((key, step), {})[worker] = (rows, replicas)
                if self._staleness:
                    self._update(key, step)
        self._go_on()
        return push.done

    def _update(self, key: Key, step: int) -> None:
        """Update with all that has been collected for a step; whoever pushed hears of an error."""
        pushed = dict(sorted(self._collected.pop((key, step)).items()))
        try:
            with self._shards.all_or_nothing([key]):
                self._shards.update(key, self._merged([*pushed.values()]))
        except BaseException as error:  # an updater may raise SystemExit, which would end nothing
            words = f"the update of key {key!r} raised {type(error).__name__}: {error}"
            for push in self._pushes:
                if push.worker in pushed and push.steps.get(key) == step:
                    push.errors.append(str(error) if isinstance(error, UpdaterFailed) else words)

    def _merged(self, pushed: Sequence[tuple[Tensor, int]]) -> Tensor:
        """What workers have pushed, each of so many replicas, as one."""
        lists = [[rows] for rows, _ in pushed]
        if len(lists) > 1:
            fastreduce.reduce(lists, op=fold_of(self._op))
        [update] = lists[0]
        if self._op == "avg":
            divide(update, sum(replicas for _, replicas in pushed))
        return update

    def _go_on(self) -> None:
        """Do what waited for a worker that has just taken a step, or left."""
        with self._lock:
            for key, step in list(self._collected):
                if not self._behind(key, step):
                    self._update(key, step)
            waits = {id(push): self._waits_for(push) for push in self._pushes}
            ready = [push for push in self._pushes if not waits[id(push)]]
            self._pushes = [push for push in self._pushes if waits[id(push)]]
        for push in ready:
            push.done.set_result(push.errors)

    def _waits_for(self, push: _Push) -> set[int]:
        steps = push.steps.items()
        return set().union(*(self._behind(key, step - self._staleness) for key, step in steps))

    def _behind(self, key: Key, step: float) -> set[int]:
        return {worker for worker in self._present if self._steps[key][worker] < step}

    def behind(self, worker: int) -> Future[list[int]]:
        """The workers for whom a worker's push waits."""
        with self._lock:
            own = [push for push in self._pushes if push.worker == worker]
            return _answer(sorted(set().union(*map(self._waits_for, own))))

    def read(self, keys: Sequence[Key]) -> Future[list[Tensor]]:
        with self._lock:
            return _answer([self._shards.entries[key].rows.to("cpu", copy=True) for key in keys])

    def read_rows(self, key: Key, numbers: Tensor) -> Future[Tensor]:
        """Of this rank's rows, those of these numbers."""
        with self._lock:
            return _answer(self._shards.entries[key].rows[numbers].cpu())

    def ping(self) -> Future[None]:
        return _answer(None)

    def leave(self, worker: int, ended: bool) -> Future[None]:
        """Wait for a worker no longer: it needs no more of this store, or has ended."""
        with self._lock:
            self._present.discard(worker)
            if ended:
                self._ended.add(worker)
            if not (self._present or self._all_left.done()):
                self._all_left.set_result(sorted(self._ended))
        self._go_on()
        return _answer(None)

    def all_left(self) -> Future[list[int]]:
        """Answers when nobody needs this store any more, with those who have ended."""
        return self._all_left


def _answer(value: Any) -> Future[Any]:
    future: Future[Any] = Future()
    future.set_result(value)
    return future


open_servers: dict[int, Server] = {}


@rpc.functions.async_execution  # type: ignore[untyped-decorator]
def ask(number: int, method: str, *args: Any) -> Future[Any]:
    """Runs where the server is."""
    if number not in open_servers and method in ("ping", "leave"):
        return _answer(None)  # one that is closed runs, and waits for nobody
    return getattr(open_servers[number], method)(*args)  # type: ignore[no-any-return]
