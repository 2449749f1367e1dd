"""Trees in time: which rank sends to which in which turn.

A packing of trees says how much can be carried while all links are busy. But in the first turn no
sum of sums can move, and in the last turn none can be passed on. A tree in time has a turn for each
of its edges, so that other trees can fill the links that this one leaves idle in some turn.

In a turn a rank reads, and in the same launch it may write what it has read or summed. So turn t
has two moments: 2 t, in which ranks read, and 2 t + 1, in which they write.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, TypeAlias

from fastreduce.instruction import Instruction

# Moment, source and destination.
Edges: TypeAlias = list[tuple[int, int, int]]


class TimedTree(NamedTuple):
    """Sums go along ``up`` to the root, which has the result in turn ``turn``; it goes along
    ``down`` to all others, nearer ones first.

    Along an edge of ``up`` whose moment is one of reading, the destination reads the source's sum.
    If it is one of writing, the source hands its sum over: in the launch in which it sums it also
    reads what the destination has, and writes the sum of both there. That is two messages, but the
    destination has the sum a turn sooner.
    """

    root: int
    turn: int
    up: Edges
    down: Edges

    def messages(self) -> Iterator[tuple[int, int, int]]:
        """Turn, source and destination of each."""
        for moment, source, rank in self.up + self.down:
            yield moment // 2, source, rank
        for moment, source, rank in self.up:
            if moment % 2:
                yield moment // 2, rank, source

    def instructions(self) -> tuple[list[Instruction], list[int]]:
        """What the ranks do, and in which turns."""
        reads, writes = self._sums()
        has = {self.root: 2 * self.turn}  # the moment from which on
        for moment, source, rank in self.down:
            turn = moment // 2
            if has[source] == 2 * turn:
                writes[turn, source].append(rank)
                has[rank] = 2 * turn + 1
            else:
                reads[turn, rank], writes[turn, rank] = [source], [rank]
                has[rank] = 2 * turn
        order = sorted(reads)
        found = [
            Instruction(rank, 0, tuple(sorted(reads[turn, rank])), tuple(writes[turn, rank]))
            for turn, rank in order
        ]
        return found, [turn for turn, _ in order]

    def _sums(self) -> tuple[dict[tuple[int, int], list[int]], dict[tuple[int, int], list[int]]]:
        """By turn and rank: whose data are summed on the way up, and who gets the sum."""
        reads: dict[tuple[int, int], list[int]] = {}
        handed = {}
        for moment, source, rank in self.up:
            turn, writes = divmod(moment, 2)
            executor, other = (source, rank) if writes else (rank, source)
            reads.setdefault((turn, executor), [executor]).append(other)
            if writes:
                handed[turn, source] = [rank]
        return reads, {at: [at[1]] for at in reads} | handed
