"""A value of a store, cut by rows over the ranks that are servers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

Key = str | int


@dataclass
class Entry:
    """A value of ``shape``; its rows (dimension 0) are dealt to the servers, in order."""

    shape: torch.Size
    servers: Sequence[int]  # their ranks
    rows: Tensor  # this rank's

    def bounds(self, rank: int) -> tuple[int, int]:
        """The first row of a rank, and the end; servers' numbers of rows differ by at most one."""
        if rank not in self.servers:
            return 0, 0
        least, more = divmod(self.shape[0] if self.shape else 1, len(self.servers))
        at = self.servers.index(rank)
        begin, end = (x * least + min(x, more) for x in (at, at + 1))
        return begin, end

    def part(self, value: Tensor, rank: int) -> Tensor:
        """The rows of ``value``, which has this entry's shape, that belong to ``rank``."""
        begin, end = self.bounds(rank)
        return (value if value.dim() else value.reshape(1))[begin:end]

    def mask(self, numbers: Tensor, rank: int) -> Tensor:
        """Which of these numbers of rows are those of ``rank``."""
        begin, end = self.bounds(rank)
        return (numbers >= begin) & (numbers < end)

    def nbytes(self, rank: int) -> int:
        begin, end = self.bounds(rank)
        return (end - begin) * self.shape[1:].numel() * self.rows.element_size()

    def from_bytes(self, data: Tensor, rows: int) -> Tensor:
        # Copied if it does not begin at a multiple of its elements' size.
        aligned = data if data.storage_offset() % self.rows.element_size() == 0 else data.clone()
        return aligned.view(self.rows.dtype).view(rows, *self.shape[1:])
