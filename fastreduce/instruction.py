"""The one instruction."""

from __future__ import annotations

from typing import NamedTuple

# The executor of an instruction that runs on the CPU, wherever the ranks' buffers are.
HOST = -1


class Instruction(NamedTuple):
    """``rank`` reads ``shard`` of every buffer in ``srcs``, reduces in that order, writes ``dsts``.

    One source is a copy, many are a reduction. A buffer may be both source and destination, but
    neither twice. Rank `HOST` is the CPU: sources are copied to its memory, and the result is
    copied back.

    >>> Instruction(rank=0, shard=0, srcs=(0, 1), dsts=(0, 1))
    Instruction(rank=0, shard=0, srcs=(0, 1), dsts=(0, 1))
    """

    rank: int
    shard: int
    srcs: tuple[int, ...]
    dsts: tuple[int, ...]

    def __str__(self) -> str:
        if not (isinstance(self.srcs, tuple) and isinstance(self.dsts, tuple)):
            return repr(self)  # malformed; a program says so when it is verified
        who = "the host" if self.rank == HOST else f"rank {self.rank}"
        verb = "copies" if len(self.srcs) == 1 else "reduces"
        return f"{who} {verb} shard {self.shard} of {list(self.srcs)} into {list(self.dsts)}"
