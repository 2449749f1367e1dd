"""Calls that all ranks make alike: values move by collectives, and sums have one order."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from torch import Tensor

from fastreduce.kvstore.arguments import names
from fastreduce.kvstore.entry import Key
from fastreduce.kvstore.peers import Made, Peers, agreed
from fastreduce.kvstore.shards import Shards
from fastreduce.kvstore.updates import changeable, divide, fold_of


class Synchronous:
    """The `Values` of "local" and "dist_sync"."""

    def __init__(self, peers: Peers, shards: Shards, op: str) -> None:
        self.shards = shards
        self._peers = peers
        self._op = op

    def agreed(self, call: str, checked: Callable[[], tuple[str, Made]]) -> Made:
        return agreed(self._peers, call, checked)

    together = agreed

    def add(self, values: Mapping[Key, Tensor]) -> None:
        self.shards.add(values)

    @changeable()
    def push(self, merged: Mapping[Key, Tensor], replicas: int) -> None:
        with self.shards.lock:
            self._push(merged, replicas)

    def _push(self, merged: Mapping[Key, Tensor], replicas: int) -> None:
        updates = self.shards.reduce(merged, fold_of(self._op))
        if self._op == "avg":
            pushed = sum(self._peers.agree("avg", count=replicas))
            for update in updates.values():
                divide(update, pushed)

        def updated() -> tuple[str, None]:
            for key, update in updates.items():
                self.shards.update(key, update)
            return names(merged), None

        with self.shards.all_or_nothing(merged):
            self.agreed("update", updated)

    def read(self, keys: Sequence[Key]) -> Iterator[tuple[Key, int, Tensor]]:
        with self.shards.lock:
            return iter(list(self.shards.read(keys)))

    def read_rows(self, key: Key, numbers: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        with self.shards.lock:
            return iter(list(self.shards.read_rows(key, numbers)))

    def close(self) -> None:
        """Nobody waits for this rank."""
