"""Where a store's values are, and how they are reached: what all kinds of stores have in common."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Protocol

from torch import Tensor

from fastreduce.kvstore.entry import Key
from fastreduce.kvstore.peers import Made


class Values(Protocol):
    def agreed(self, call: str, checked: Callable[[], tuple[str, Made]]) -> Made:
        """What ``checked`` returns, beside what the call is about, once the call may go on."""
        ...

    def together(self, call: str, checked: Callable[[], tuple[str, Made]]) -> Made:
        """`agreed`, for a call that all ranks make alike in every kind of store."""
        ...

    def add(self, values: Mapping[Key, Tensor]) -> None:
        """Give keys the values of rank 0; all ranks call it."""
        ...

    def push(self, merged: Mapping[Key, Tensor], replicas: int) -> None:
        """Update keys with what this rank's replicas, so many, have been reduced to."""
        ...

    def read(self, keys: Sequence[Key]) -> Iterator[tuple[Key, int, Tensor]]:
        """Each key's rows of each rank: key, rank and rows."""
        ...

    def read_rows(self, key: Key, numbers: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """The rows of these numbers, (n,) int64, by rank: a mask of ``numbers``, and rows."""
        ...

    def close(self) -> None: ...
