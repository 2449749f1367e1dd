"""The rows of all ranks, how they move by collectives, and how they change."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

import fastreduce
from fastreduce.bits import bytes_of
from fastreduce.kvstore.arguments import about, check_unknown
from fastreduce.kvstore.entry import Entry, Key
from fastreduce.kvstore.peers import Peers
from fastreduce.kvstore.updates import Updates, changeable


class Shards:
    """All values of a store: this rank's rows, what updates them, and how rows move by collectives.

    `add`, `reduce`, `read` and `read_rows` are called by all ranks alike.
    """

    def __init__(self, peers: Peers, servers: Sequence[int]) -> None:
        self._peers = peers
        self._servers = servers
        self.entries: dict[Key, Entry] = {}
        self.updates = Updates()
        self.pushes = 0  # how many have changed the rows
        # Of all this: calls come from threads. An updater may look at its own store.
        self.lock = threading.RLock()

    def update(self, key: Key, update: Tensor) -> None:
        """Change this rank's rows; if the updater raises, UpdaterFailed is raised."""
        rows = self.entries[key].rows
        self.updates.apply(key, update.to(rows), rows)

    @contextlib.contextmanager
    def all_or_nothing(self, keys: Collection[Key]) -> Iterator[None]:
        """Whatever is raised in here, keys and their optimizers are as they were before."""
        with changeable():
            rows = {key: self.entries[key].rows for key in keys}
            before = {key: x.clone() for key, x in rows.items()}
            undo = self.updates.undo(keys)
            try:
                yield
            except BaseException:
                for key, x in before.items():
                    rows[key].data = x  # an updater may have changed its shape, too
                undo()
                raise
        self.pushes += 1

    @changeable()
    def add(self, values: Mapping[Key, Tensor]) -> None:
        """Make entries with the values of rank 0."""
        ranks, rank = range(self._peers.size), self._peers.rank
        made = {key: Entry(x.shape, self._servers, x.detach()) for key, x in values.items()}
        parts = [_joined(made[key].part(x, r) for key, x in values.items()) for r in ranks]
        if rank:
            parts = [part[:0] for part in parts]
        own_bytes = sum(entry.nbytes(rank) for entry in made.values())
        came = self._peers.exchange(parts, [own_bytes if r == 0 else 0 for r in ranks])
        for key, rows in self._cut(came[0], made, rank):
            made[key].rows = rows.to(values[key].device, copy=True)
        with self.lock:
            check_unknown(values, self.entries)  # again: another thread may have been quicker
            # Not in place: other threads go through the keys without a lock.
            self.entries = {**self.entries, **made}

    def reduce(self, values: Mapping[Key, Tensor], op: str) -> dict[Key, Tensor]:
        """This rank's rows of the reduction of what all ranks have, in the order of the ranks.

        They have the dtypes of ``values``.
        """
        own = {key: Entry(x.shape, self._servers, x) for key, x in values.items()}
        rank, ranks = self._peers.rank, range(self._peers.size)
        parts = [_joined(own[key].part(x, r) for key, x in values.items()) for r in ranks]
        own_bytes = sum(entry.nbytes(rank) for entry in own.values())
        came = self._peers.exchange(parts, [own_bytes] * len(ranks))
        found = [dict(self._cut(data, own, rank)) for data in came]
        lists = [[rows for rows in x.values() if rows.numel()] for x in found]
        if len(ranks) > 1 and lists[0]:
            fastreduce.reduce(lists, op=op)
        return found[0]

    def read(self, keys: Sequence[Key]) -> Iterator[tuple[Key, int, Tensor]]:
        """Each key's rows of each rank: key, rank and rows."""
        own = {key: self.entries[key] for key in keys}
        ranks = range(self._peers.size)
        mine = _joined(entry.rows for entry in own.values())
        wanted = [sum(entry.nbytes(r) for entry in own.values()) for r in ranks]
        came = self._peers.exchange([mine] * len(ranks), wanted)
        for rank in ranks:
            for key, rows in self._cut(came[rank], own, rank):
                yield key, rank, rows

    def read_rows(self, key: Key, numbers: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """The rows of these numbers, (n,) int64, from each rank: a mask of ``numbers``, and rows.

        First all ranks tell how many rows they want of whom, then which, then they come.
        """
        entry, ranks = self.entries[key], range(self._peers.size)
        masks = [entry.mask(numbers, rank) for rank in ranks]
        counts = torch.stack([mask.sum() for mask in masks])
        asked = self._peers.exchange(
            [bytes_of(x) for x in torch.split(counts, 1)], [8] * len(ranks)
        )
        sizes = [8 * int(x.view(torch.int64)) for x in asked]
        came = self._peers.exchange([bytes_of(numbers[mask]) for mask in masks], sizes)
        first, _ = entry.bounds(self._peers.rank)
        answers = [bytes_of(entry.rows[x.view(torch.int64) - first]) for x in came]
        row_bytes = entry.shape[1:].numel() * entry.rows.element_size()
        rows = self._peers.exchange(answers, [row_bytes * int(count) for count in counts])
        for mask, data in zip(masks, rows, strict=True):
            yield mask, entry.from_bytes(data, int(mask.sum()))

    def state(self) -> dict[str, Any]:
        with self.lock:
            values = {key: entry.rows.clone() for key, entry in self.entries.items()}
            optimizers = self.updates.state(self.entries)
            return {
                "values": values,
                "optimizers": optimizers,
                "optimizer": self.updates.optimizer,
                "pushes": self.pushes,
                "rank": self._peers.rank,
                "ranks": self._peers.size,
            }

    def restorer(self, state: Mapping[str, Any]) -> Callable[[], None]:
        """What puts back a state that `state` returned; raises ValueError if it does not fit."""
        kinds: dict[str, Any] = {"values": dict, "optimizers": dict, "optimizer": str | None}
        kinds |= {"pushes": int, "rank": int, "ranks": int}
        if not isinstance(state, Mapping) or not all(
            isinstance(state.get(name), kind) for name, kind in kinds.items()
        ):
            parts = list(state) if isinstance(state, Mapping) else type(state).__name__
            raise ValueError(
                f"load_state_dict: found another thing than what state_dict returns ({parts}); "
                f"wanted a dict with {', '.join(kinds)}"
            )
        if state["ranks"] != self._peers.size:
            raise ValueError(
                f"load_state_dict: found the state of a store of {state['ranks']} ranks, wanted "
                f"{self._peers.size}; begin with as many ranks as it had"
            )
        if state["rank"] != self._peers.rank:
            raise ValueError(
                f"load_state_dict: found the state of rank {state['rank']}, wanted that of rank "
                f"{self._peers.rank}; each rank has rows of its own, and saves and loads them"
            )
        own = {key: entry.rows for key, entry in self.entries.items()}
        found, wanted = ({k: about(x) for k, x in x.items()} for x in (state["values"], own))
        if found != wanted:
            other = [key for key in {**found, **wanted} if found.get(key) != wanted.get(key)]
            words = (
                f"{key!r}: {found.get(key, 'nothing')}, wanted {wanted.get(key, 'nothing')}"
                for key in other[:3]
            )
            raise ValueError(f"load_state_dict: found rows of {'; '.join(words)}")
        put_optimizers = self.updates.restorer(state["optimizers"], state.get("optimizer"), own)

        def put() -> None:
            with self.lock, self.all_or_nothing(own):
                put_optimizers()
                for key, rows in state["values"].items():
                    own[key].copy_(rows)
            self.pushes = state["pushes"]

        return put

    @staticmethod
    def _cut(data: Tensor, entries: Mapping[Key, Entry], rank: int) -> Iterator[tuple[Key, Tensor]]:
        """The rows of each key of a rank, from one buffer of bytes."""
        ends = [0]
        for entry in entries.values():
            ends.append(ends[-1] + entry.nbytes(rank))
        for (key, entry), (begin, end) in zip(entries.items(), pairwise(ends), strict=True):
            first, last = entry.bounds(rank)
            yield key, entry.from_bytes(data[begin:end], last - first)


def _joined(parts: Iterable[Tensor]) -> Tensor:
    """The bytes of all, on the first one's device."""
    data = [bytes_of(part) for part in parts]
    return torch.cat([x.to(data[0].device) for x in data])
