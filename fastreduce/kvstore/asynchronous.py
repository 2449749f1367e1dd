"""Calls that each rank makes when it is ready, and that servers on other ranks answer."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor

from fastreduce.kvstore.arguments import names
from fastreduce.kvstore.entry import Key
from fastreduce.kvstore.peers import Made, Peers, RankEnded, agreed
from fastreduce.kvstore.remote import Remote
from fastreduce.kvstore.server import Server
from fastreduce.kvstore.shards import Shards


class Asynchronous:
    """The `Values` of "dist_async"."""

    def __init__(
        self,
        peers: Peers,
        shards: Shards,
        op: str,
        *,
        staleness: int | None,
        timeout_s: float,
    ) -> None:
        self.shards = shards
        self._peers, self._rank = peers, peers.rank
        self._remote = Remote(peers, timeout_s)
        server = Server(
            shards,
            workers=peers.size,
            staleness=math.inf if staleness is None else staleness,
            op=op,
        )
        self._remote.open(server)
        # Now, because a rank that ends while another accepts its connection breaks that one's rpc.
        self._remote.connect()
        peers.agree("KVStore")  # so nobody pushes to a server that does not exist yet

    def agreed(self, call: str, checked: Callable[[], tuple[str, Made]]) -> Made:
        self._refuse_updaters(call)
        return checked()[1]

    def together(self, call: str, checked: Callable[[], tuple[str, Made]]) -> Made:
        self._refuse_updaters(call)
        return agreed(self._peers, call, checked)

    def _refuse_updaters(self, call: str) -> None:
        """Rows are locked while they are updated, so who waits for them then waits for itself."""
        if keys := self.shards.updates.under_way:
            raise RuntimeError(
                f"{call}: found a call by the updater of key {keys[-1]!r} on its own store, which "
                "would wait for that updater to end; wanted one that uses only what it is given"
            )

    def add(self, values: Mapping[Key, Tensor]) -> None:
        self.shards.add(values)
        self._peers.agree("init")  # so nobody pushes to a server that has no value yet

    def push(self, merged: Mapping[Key, Tensor], replicas: int) -> None:
        calls: dict[int, tuple[Any, ...]] = {}
        for rank, keys in self._served(list(merged)).items():
            entries = self.shards.entries
            parts = {key: entries[key].part(merged[key], rank).cpu() for key in keys}
            calls[rank] = ("push", self._rank, parts, replicas)
        answers = self._ask(f"push of {names(merged)}", calls)
        names_of = self._peers.names
        failed = [f"{names_of[rank]}: {words}" for rank in answers for words in answers[rank]]
        if failed:
            raise RuntimeError(f"push: {'; '.join(failed)}; the key's rows there keep their values")

    def read(self, keys: Sequence[Key]) -> Iterator[tuple[Key, int, Tensor]]:
        served = self._served(keys)
        calls = {rank: ("read", asked) for rank, asked in served.items()}
        for rank, came in self._ask(f"pull of {names(keys)}", calls).items():
            for key, rows in zip(served[rank], came, strict=True):
                yield key, rank, rows

    def read_rows(self, key: Key, numbers: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        entry = self.shards.entries[key]
        masks = {rank: entry.mask(numbers, rank) for rank in self._served([key])}
        calls = {
            rank: ("read_rows", key, numbers[mask] - entry.bounds(rank)[0])
            for rank, mask in masks.items()
        }
        for rank, rows in self._ask(f"row_sparse_pull of {key!r}", calls).items():
            yield masks[rank], rows

    def _served(self, keys: Sequence[Key]) -> dict[int, list[Key]]:
        """By server, those of the keys of which it has rows."""
        entries, ranks = self.shards.entries, range(self._peers.size)
        found = {rank: [key for key in keys if entries[key].nbytes(rank)] for rank in ranks}
        return {rank: held for rank, held in found.items() if held}

    def _ask(self, call: str, calls: Mapping[int, tuple[Any, ...]]) -> dict[int, Any]:
        try:
            return self._remote.ask(calls)
        except RankEnded as error:
            assert error.rank is not None
            held = self._served(list(self.shards.entries))[error.rank]
            raise RankEnded(
                f"{call}: {self._peers.names[error.rank]} has ended ({error}), and with it the "
                f"rows that it kept of keys {names(held)}; begin again, from a checkpoint of the "
                "store if there is one (KVStore.load_state_dict)",
                error.rank,
            ) from error
        except TimeoutError as error:
            raise TimeoutError(f"{call}: {error}") from None

    def close(self) -> None:
        self._refuse_updaters("close")
        self._remote.close()
