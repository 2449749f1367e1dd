"""Values cut by rows over the ranks of a store, and how they move between them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

import fastreduce
from fastreduce.kvstore.peers import Peers

Key = str | int


@dataclass
class Entry:
    """A value of ``shape``; its rows (dimension 0) are dealt to the ranks, in order."""

    shape: torch.Size
    ranks: int
    rows: Tensor  # this rank's

    def bounds(self, rank: int) -> tuple[int, int]:
        """The first row of a rank, and the end; sizes differ by at most one."""
        least, more = divmod(self.shape[0] if self.shape else 1, self.ranks)
        begin, end = (x * least + min(x, more) for x in (rank, rank + 1))
        return begin, end

    def part(self, value: Tensor, rank: int) -> Tensor:
        """The rows of ``value``, which has this entry's shape, that belong to ``rank``."""
        begin, end = self.bounds(rank)
        return (value if value.dim() else value.reshape(1))[begin:end]

    def nbytes(self, rank: int) -> int:
        begin, end = self.bounds(rank)
        return (end - begin) * self.shape[1:].numel() * self.rows.element_size()

    def from_bytes(self, data: Tensor) -> Tensor:
        # Copied if it does not begin at a multiple of its elements' size.
        aligned = data if data.storage_offset() % self.rows.element_size() == 0 else data.clone()
        return aligned.view(self.rows.dtype).view(-1, *self.shape[1:])


class Shards:
    """All values of a store. Every method is called by all ranks alike."""

    def __init__(self, peers: Peers) -> None:
        self._peers = peers
        self.entries: dict[Key, Entry] = {}

    def add(self, values: Mapping[Key, Tensor]) -> None:
        """Make entries with the values of rank 0."""
        ranks, rank = range(self._peers.size), self._peers.rank
        made = {key: Entry(x.shape, len(ranks), x.detach()) for key, x in values.items()}
        parts = [_joined(made[key].part(x, r) for key, x in values.items()) for r in ranks]
        if rank:
            parts = [part[:0] for part in parts]
        own_bytes = sum(entry.nbytes(rank) for entry in made.values())
        came = self._peers.exchange(parts, [own_bytes if r == 0 else 0 for r in ranks])
        for key, rows in self._cut(came[0], made, rank):
            made[key].rows = rows.to(values[key].device, copy=True)
        self.entries.update(made)

    def reduce(self, values: Mapping[Key, Tensor], op: str) -> dict[Key, Tensor]:
        """This rank's rows of the reduction of what all ranks have, in the order of the ranks."""
        own = {key: self.entries[key] for key in values}
        rank, ranks = self._peers.rank, range(self._peers.size)
        parts = [_joined(own[key].part(x, r) for key, x in values.items()) for r in ranks]
        own_bytes = sum(entry.nbytes(rank) for entry in own.values())
        came = self._peers.exchange(parts, [own_bytes] * len(ranks))
        found = [dict(self._cut(data, own, rank)) for data in came]
        lists = [[rows for rows in x.values() if rows.numel()] for x in found]
        if len(ranks) > 1 and lists[0]:
            fastreduce.reduce(lists, op=op)
        return {key: rows.to(own[key].rows.device) for key, rows in found[0].items()}

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
        limits = [entry.bounds(rank) for rank in ranks]
        masks = [(numbers >= begin) & (numbers < end) for begin, end in limits]
        counts = torch.stack([mask.sum() for mask in masks])
        asked = self._peers.exchange(
            [_bytes_of(x) for x in torch.split(counts, 1)], [8] * len(ranks)
        )
        sizes = [8 * int(x.view(torch.int64)) for x in asked]
        came = self._peers.exchange([_bytes_of(numbers[mask]) for mask in masks], sizes)
        first = limits[self._peers.rank][0]
        answers = [_bytes_of(entry.rows[x.view(torch.int64) - first]) for x in came]
        row_bytes = entry.shape[1:].numel() * entry.rows.element_size()
        rows = self._peers.exchange(answers, [row_bytes * int(count) for count in counts])
        for mask, data in zip(masks, rows, strict=True):
            yield mask, entry.from_bytes(data)

    @staticmethod
    def _cut(data: Tensor, entries: Mapping[Key, Entry], rank: int) -> Iterator[tuple[Key, Tensor]]:
        """The rows of each key of a rank, from one buffer of bytes."""
        ends = [0]
        for entry in entries.values():
            ends.append(ends[-1] + entry.nbytes(rank))
        for (key, entry), (begin, end) in zip(entries.items(), pairwise(ends), strict=True):
            yield key, entry.from_bytes(data[begin:end])


def _bytes_of(value: Tensor) -> Tensor:
    return value.contiguous().reshape(-1).view(torch.uint8)


def _joined(parts: Iterable[Tensor]) -> Tensor:
    """The bytes of all, on the first one's device."""
    data = [_bytes_of(part.detach()) for part in parts]
    return torch.cat([x.to(data[0].device) for x in data])
