"""Turns a program on a topology into stages: what is transferred, and after what."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

from fastreduce.program import HOST, Instruction, Program

if TYPE_CHECKING:
    from fastreduce.topology import Topology


class Transfer(NamedTuple):
    """``bytes`` of a shard move from node ``src`` to node ``dst``, or in the memory of one node."""

    src: str
    dst: str
    shard: int
    what: str
    bytes: float


class Stage(NamedTuple):
    """Transfers that a lane starts together, after all stages in ``waits`` (by index) have ended.

    A lane is a device's stream. ``launches`` is true if a new kernel starts, and false if an
    earlier one continues.
    """

    lane: str
    what: str
    transfers: tuple[Transfer, ...]
    waits: tuple[int, ...]
    launches: bool


def stages_of(
    program: Program, topology: Topology, slice_bytes: Sequence[Sequence[float]]
) -> list[Stage]:
    """The read stage of each task and, where it writes to another node, its write stage.

    A task is one launch (`Program.launches`) on one slice, whose shards have
    ``slice_bytes[slice][shard]`` bytes. It waits for the tasks that its instructions depend on and
    for its lane's previous launch. A lane reads the next slice of a launch while it writes the
    previous one.
    """
    dependencies, groups = program.dependencies(), program.launches()
    group_of = {index: number for number, group in enumerate(groups) for index in group}
    places = [_Place(program, topology, sizes) for sizes in slice_bytes]
    stages: list[Stage] = []
    ends: dict[tuple[int, int], int] = {}  # the last stage of each (group, slice)
    lane_ends: dict[str, int] = {}
    for number, group in enumerate(groups):
        instructions = [program.instructions[index] for index in group]
        before = sorted({group_of[wait] for index in group for wait in dependencies[index]})
        lane = places[0].executor(instructions[0])
        last = {lane_ends[lane]} if lane in lane_ends else set()
        previous = dict.fromkeys((_reads, _writes), last)
        for part, place in enumerate(places):
            tail = f", slice {part}" if len(places) > 1 else ""
            waits = {ends[earlier, part] for earlier in before}
            for phase in (_reads, _writes):
                words, transfers = phase(place, instructions, tail)
                if transfers:
                    after, launches = tuple(waits | previous[phase]), phase is _reads
                    stages.append(Stage(lane, words + tail, transfers, after, launches))
                    waits = previous[phase] = {len(stages) - 1}
            ends[number, part] = len(stages) - 1
        lane_ends[lane] = len(stages) - 1
    return stages


class _Place:
    """Which node holds a buffer or executes an instruction, and the bytes of shards, for one slice.

    Rank r's buffer and rank r's output lie on the topology's device r.
    """

    def __init__(self, program: Program, topology: Topology, shard_bytes: Sequence[float]) -> None:
        devices = topology.devices
        self.shard_bytes = shard_bytes
        self._k = program.k
        self._devices = [devices[buffer % program.k] for buffer in range(program.buffers)]
        uses_host = any(instruction.rank == HOST for instruction in program.instructions)
        self._host = topology.host_of(devices[0]) if uses_host else ""

    def executor(self, instruction: Instruction) -> str:
        return self._host if instruction.rank == HOST else self._devices[instruction.rank]

    def of(self, buffer: int) -> str:
        return self._devices[buffer]

    def goes_straight(self, instruction: Instruction) -> bool:
        """Whether it is a copy from one device to another, which passes through no third node."""
        one_each = len(instruction.srcs) == len(instruction.dsts) == 1
        apart = self.of(instruction.srcs[0]) != self.of(instruction.dsts[0])
        return one_each and apart and instruction.rank != HOST

    def name(self, buffers: Sequence[int]) -> str:
        """Such as "rank 2", "ranks 0-3, 5" or "output 1"."""
        kind = "rank" if buffers[0] < self._k else "output"
        return f"{kind}{'s' * (len(buffers) > 1)} {runs([b % self._k for b in buffers])}"


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


def _reads(
    place: _Place, instructions: Sequence[Instruction], tail: str
) -> tuple[str, tuple[Transfer, ...]]:
    """Transfers of sources to the executor, and in its memory: sources read, the result written."""
    words, transfers = [], []
    for instruction in instructions:
        lane, shard = place.executor(instruction), instruction.shard
        nbytes = place.shard_bytes[shard]
        if place.goes_straight(instruction):
            words.append(_straight(place, instruction))
            ends = place.of(instruction.srcs[0]), place.of(instruction.dsts[0])
            transfers.append(Transfer(*ends, shard, words[-1] + tail, nbytes))
            continue
        words.append(f"shard {shard} <- {place.name(instruction.srcs)}")
        for src in instruction.srcs:
            if place.of(src) != lane:
                what = f"shard {shard} <- {place.name([src])}{tail}"
                transfers.append(Transfer(place.of(src), lane, shard, what, nbytes))
        touched_bytes = (len(instruction.srcs) + 1) * nbytes
        transfers.append(Transfer(lane, lane, shard, words[-1] + tail, touched_bytes))
    return "; ".join(words), tuple(transfers)


def _straight(place: _Place, instruction: Instruction) -> str:
    (src,), (dst,) = instruction.srcs, instruction.dsts
    lane = place.executor(instruction)
    pulled = "" if place.of(src) == lane else f" <- {place.name([src])}"
    pushed = "" if place.of(dst) == lane else f" -> {place.name([dst])}"
    return f"shard {instruction.shard}{pulled}{pushed}"


def _writes(
    place: _Place, instructions: Sequence[Instruction], tail: str
) -> tuple[str, tuple[Transfer, ...]]:
    """Transfers of results from the executor to destinations on other nodes."""
    words, transfers = [], []
    for instruction in instructions:
        lane, shard = place.executor(instruction), instruction.shard
        elsewhere = [dst for dst in instruction.dsts if place.of(dst) != lane]
        if place.goes_straight(instruction) or not elsewhere:
            continue
        words.append(f"shard {shard} -> {place.name(elsewhere)}")
        for dst in elsewhere:
            what = f"shard {shard} -> {place.name([dst])}{tail}"
            transfers.append(Transfer(lane, place.of(dst), shard, what, place.shard_bytes[shard]))
    return "; ".join(words), tuple(transfers)
