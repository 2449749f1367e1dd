"""The events of a simulation, with what they do in words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

from fastreduce.simulation.timeline import Event

if TYPE_CHECKING:
    from fastreduce.program import Program
    from fastreduce.simulation.run import Run

# In place of the buffer whose data a transfer moves (csrc/simulation/tasks.h).
ALL = -1  # in the executor's memory: all sources are read, the result is written
STRAIGHT = -2  # between the executor and the one other node


class Transfer(NamedTuple):
    """A transfer between a pair of nodes, ``times`` a shard's bytes, for an instruction."""

    pair: int
    shard: int
    times: int
    instruction: int
    buffer: int


def events(run: Run) -> list[Event]:
    """All of them, sorted by their start."""
    return sorted(_events(run), key=lambda event: event.start_s)


def _events(run: Run) -> Iterator[Event]:
    simulation, topology = run.simulation, run.topology
    nodes = list(topology.graph)
    pairs = [(nodes[src], nodes[dst]) for src, dst in simulation.pairs]
    routes = [topology.route(*pair) for pair in pairs]
    transfers = [Transfer(*x) for x in simulation.transfers]
    spans = simulation.spans(run.slice_bytes, run.slices, run.costs.numbers)
    stage_spans = zip(spans[0], spans[1], strict=True)
    transfer_spans = zip(spans[2], spans[3], strict=True)
    for lane, *bounds in simulation.tasks:
        phases = _phases(run.program, transfers, *bounds)
        for number in range(run.slices):
            tail = f", slice {number}" if run.slices > 1 else ""
            for what, moved in phases:
                between = [x for x, _ in moved if routes[x.pair]]
                moved_bytes = sum(run.slice_bytes[x.shard] for x in between)
                shards = {x.shard for x, _ in moved}
                shard = shards.pop() if len(shards) == 1 else None
                start_s, end_s = next(stage_spans)
                yield Event(nodes[lane], what + tail, start_s, end_s, moved_bytes, shard)
                for x, words in moved:
                    start_s, end_s = next(transfer_spans)
                    nbytes = run.slice_bytes[x.shard]
                    for link in routes[x.pair]:
                        yield Event(link, words + tail, start_s, end_s, nbytes, x.shard)


def _phases(
    program: Program, transfers: Sequence[Transfer], reads: int, writes: int, end: int
) -> list[tuple[str, list[tuple[Transfer, str]]]]:
    """What a task does first and then, each with its transfers and what they do."""
    reading = [(x, _in_words(program, x, "<-")) for x in transfers[reads:writes]]
    writing = [(x, _in_words(program, x, "->")) for x in transfers[writes:end]]
    read = "; ".join(words for x, words in reading if x.buffer < 0)
    results = [
        (program.instructions[index].shard, list(dict.fromkeys(x.buffer for x in group)))
        for index, group in groupby(transfers[writes:end], key=lambda x: x.instruction)
    ]
    written = "; ".join(f"shard {shard} -> {_name(program, dsts)}" for shard, dsts in results)
    return [(read, reading), (written, writing)] if writing else [(read, reading)]


def _in_words(program: Program, transfer: Transfer, arrow: str) -> str:
    rank, shard, srcs, dsts = program.instructions[transfer.instruction]
    if transfer.buffer == ALL:
        return f"shard {shard} <- {_name(program, srcs)}"
    if transfer.buffer != STRAIGHT:
        return f"shard {shard} {arrow} {_name(program, [transfer.buffer])}"
    pushed = srcs[0] % program.k == rank
    return f"shard {shard} " + (
        f"-> {_name(program, dsts)}" if pushed else f"<- {_name(program, srcs)}"
    )


def _name(program: Program, buffers: Sequence[int]) -> str:
    """Such as "rank 2", "ranks 0-3, 5" or "output 1"."""
    kind = "rank" if buffers[0] < program.k else "output"
    return f"{kind}{'s' * (len(buffers) > 1)} {runs([b % program.k for b in buffers])}"


def runs(numbers: Sequence[int]) -> str:
    """
    >>> runs([0, 1, 2, 3, 5, 7, 8])
    '0-3, 5, 7, 8'
    """
    words = []
    for _, run in groupby(enumerate(numbers), key=lambda item: item[1] - item[0]):
        members = [str(number) for _, number in run]
        words.append(f"{members[0]}-{members[-1]}" if len(members) > 2 else ", ".join(members))
    return ", ".join(words)
