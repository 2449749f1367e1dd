from fastreduce.algorithms.registration import algorithm
from fastreduce.instruction import Instruction
from fastreduce.program import Program


@algorithm("sharded")
def sharded(k: int) -> Program:
    """Rank r reduces shard r of all ranks and writes it to all: every link carries its share.

    *Dive into Deep Learning*, section 12.7.1, splits the gradient over several summing devices in
    this way. It is reduce-scatter and all-gather in one step. Sources are read in ascending rank
    order, so the bits are those of `leader`.

    >>> print(sharded(2))
    2 ranks, 2 shards, 2 instructions
       0 rank 0 reduces shard 0 of [0, 1] into [0, 1]
       1 rank 1 reduces shard 1 of [0, 1] into [0, 1]
    """
    everyone = tuple(range(k))
    return Program(k, k, [Instruction(r, r, everyone, everyone) for r in range(k)])
