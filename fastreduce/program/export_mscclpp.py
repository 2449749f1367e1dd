"""Programs as execution plans of MSCCL++: the JSON that its executor reads.

The form is that of microsoft/mscclpp (src/core/executor/execution_plan.cc, and execution_kernel.hpp
beside it). Each GPU has thread blocks; those of the same number on different GPUs work on the same
shards. A thread block does the instructions of its rank in order, and reads and writes the other
GPUs' memory itself. Two thread blocks of one number have a channel, on which one signals as often
as the other waits: at the beginning, at the end, and where an instruction must come after another
rank's. In a sum the value of the rank that sums comes first.
"""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from fastreduce.instruction import Instruction
from fastreduce.program.program import Program

# Limits of the executor (execution_common.hpp): operations of a thread block, other GPUs that it
# reaches, and how many of them one operation names.
OPERATIONS, PEERS, PEERS_OF_ONE = 64, 16, 8
# More thread blocks than NCCL has channels are not asked for.
BLOCKS = 32

Json: TypeAlias = dict[str, Any]


def mscclpp(program: Program) -> str:
    """The JSON of an allreduce, in place; in as few thread blocks as it fits.

    Raises:
        ValueError: it does not fit.
    """
    most_blocks = min(BLOCKS, program.shards)
    done = Counter(x.rank for x in program.instructions)
    # With fewer it cannot fit, and each try takes long where there are many instructions.
    fewest = min(most_blocks, math.ceil(max(done.values(), default=1) / OPERATIONS))
    for count in range(fewest, most_blocks + 1):
        blocks = _blocks(program, count)
        if all(block.fits() for gpu in blocks for block in gpu):
            return json.dumps(_plan(program, blocks), indent=1) + "\n"
    most = max((block for gpu in blocks for block in gpu), key=lambda x: len(x.operations))
    raise ValueError(
        f"{program!r} is too long for MSCCL++: with {count} thread blocks one has "
        f"{len(most.operations)} operations and reaches {len(most.peers)} other GPUs, where "
        f"{OPERATIONS} and {PEERS} fit; want fewer shards"
    )


@dataclass
class _Block:
    """``operations`` name other GPUs by their places in ``peers``."""

    peers: list[int] = field(default_factory=list)
    operations: list[Json] = field(default_factory=list)
    uses_scratch: bool = False

    def fits(self) -> bool:
        return len(self.operations) <= OPERATIONS and len(self.peers) <= PEERS

    def add(self, name: str, **what: Any) -> None:
        """Behind a barrier of the block's threads, if another operation was there before."""
        if self.operations:
            self.operations.append({"name": "nop"})
        self.operations.append({"name": name, **what})

    def tell(self, name: str, ranks: Sequence[int]) -> None:
        for some in _in_parts(ranks):
            channels = [self.peers.index(rank) for rank in some]
            self.add(name, channel_ids=channels, channel_type="memory")

    def meet(self) -> None:
        self.tell("signal", self.peers)
        self.tell("wait", self.peers)

    def execute(self, x: Instruction) -> None:
        home = {"type": "i" if x.rank in x.dsts else "s", "index": x.shard, "size": 1}
        others = [dst for dst in x.dsts if dst != x.rank]
        if x.srcs == (x.rank,):
            return self._put({**home, "type": "i"}, others)
        self.uses_scratch |= home["type"] == "s"
        first = {**home, "type": "i"}
        srcs = [src for src in x.srcs if src != x.rank]
        if len(srcs) == len(x.srcs):
            self.add(
                "get", src_buff=[self._of(srcs[0], x.shard)], dst_buff=[home], channel_type="memory"
            )
            first, srcs = home, srcs[1:]
        for some in _in_parts(srcs):
            remote = [self._of(src, x.shard) for src in some]
            how = {"channel_type": "memory", "reduce_op": "sum"}
            self.add("rre", src_buff=[first, *remote], dst_buff=[home], **how)
            first = home
        self._put(home, others)

    def _put(self, src: Json, ranks: Sequence[int]) -> None:
        for some in _in_parts(ranks):
            dsts = [self._of(dst, src["index"]) for dst in some]
            self.add("put", src_buff=[src] * len(dsts), dst_buff=dsts, channel_type="memory")

    def _of(self, rank: int, shard: int) -> Json:
        return {"buffer_id": self.peers.index(rank), "index": shard, "size": 1}


def _in_parts(ranks: Sequence[int]) -> Iterator[Sequence[int]]:
    """As many of them as one operation can name, and again."""
    for first in range(0, len(ranks), PEERS_OF_ONE):
        yield ranks[first : first + PEERS_OF_ONE]


def _blocks(program: Program, count: int) -> list[list[_Block]]:
    """By GPU and number. Shard s belongs to the blocks of number s modulo their count."""
    waits, signals = _meetings(program, count)
    blocks = [[_Block() for _ in range(count)] for _ in range(program.k)]
    pairs: set[tuple[int, int, int]] = set()
    for number, x in enumerate(program.instructions):
        together = {*x.srcs, *x.dsts, *waits[number], *signals[number]} - {x.rank}
        for rank in together:
            pairs |= {(x.rank, rank, x.shard % count), (rank, x.rank, x.shard % count)}
    for rank, peer, number in sorted(pairs):
        blocks[rank][number].peers.append(peer)
    every = [block for gpu in blocks for block in gpu]
    for block in every:
        block.meet()
    for number, x in enumerate(program.instructions):
        block = blocks[x.rank][x.shard % count]
        block.tell("wait", waits[number])
        block.execute(x)
        block.tell("signal", signals[number])
    for block in every:
        block.meet()
    return blocks


def _meetings(program: Program, count: int) -> tuple[list[list[int]], list[list[int]]]:
    """By instruction: the ranks that it waits for before, and those that it signals behind.

    Signals of one rank to another are counted and not named: the n-th wait is for the n-th signal,
    of which each says that all before it is done.
    """
    instructions = program.instructions
    waits: list[list[int]] = [[] for _ in instructions]
    signals: list[list[int]] = [[] for _ in instructions]
    known: dict[tuple[int, int, int], int] = defaultdict(lambda: -1)
    for later, earlier in enumerate(program.dependencies()):
        block, rank = instructions[later].shard % count, instructions[later].rank
        last: dict[int, int] = {}
        for number in earlier:
            last[instructions[number].rank] = number
        for other, number in sorted(last.items()):
            if other != rank and number > known[block, rank, other]:
                known[block, rank, other] = number
                waits[later].append(other)
                signals[number].append(rank)
    return waits, signals


def _plan(program: Program, blocks: Sequence[Sequence[_Block]]) -> Json:
    return {
        "name": "fastreduce",
        "collective": "allreduce",
        "protocol": "Simple",
        "inplace": True,
        "reuse_resources": False,
        "gpus": [_gpu(program, rank, of_gpu) for rank, of_gpu in enumerate(blocks)],
        "num_threads_per_block": 1024,
        "use_double_scratch_buffer": False,
        "buffer_alignment": 16,
        "min_message_size": 0,
        "max_message_size": 2**64 - 1,
    }


def _gpu(program: Program, rank: int, blocks: Sequence[_Block]) -> Json:
    """The n-th channel from one GPU to another belongs to the n-th from that one to this."""
    reached = sorted({peer for block in blocks for peer in block.peers})
    connected: list[int] = []
    threadblocks = []
    for number, block in enumerate(blocks):
        ids = list(range(len(connected), len(connected) + len(block.peers)))
        connected += block.peers
        buffers = [reached.index(peer) for peer in block.peers]
        threadblocks.append(
            {
                "id": number,
                "ops": block.operations,
                "channels": [{"channel_type": "memory", "channel_ids": ids}],
                "remote_buffer_refs": [
                    {"access_channel_type": "memory", "remote_buffer_ids": buffers}
                ],
            }
        )
    remote = [{"rank": x, "type": "i", "access_channel_types": ["memory"]} for x in reached]
    return {
        "id": rank,
        "input_chunks": program.shards,
        "output_chunks": program.shards,
        "scratch_chunks": program.shards * any(block.uses_scratch for block in blocks),
        "threadblocks": threadblocks,
        "channels": [{"channel_type": "memory", "connected_to": connected}],
        "remote_buffers": remote,
        "semaphores": [],
    }
