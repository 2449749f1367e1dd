from fastreduce.algorithms.registration import algorithm
from fastreduce.algorithms.ring import around
from fastreduce.program import Program


@algorithm("bidirectional")
def bidirectional(k: int) -> Program:
    """`ring` with half of the shards each way round: both directions of every link carry data.

    Links are full duplex (NVLink, PCIe), so half the bytes each way take half the time. As in
    `ring`, each shard is summed in a different order, so the bits differ from `leader`'s.

    >>> print(bidirectional(2))
    2 ranks, 4 shards, 8 instructions
       0 rank 0 reduces shard 1 of [1, 0] into [0]
       1 rank 0 reduces shard 2 of [1, 0] into [0]
       2 rank 1 reduces shard 0 of [0, 1] into [1]
       3 rank 1 reduces shard 3 of [0, 1] into [1]
       4 rank 0 copies shard 0 of [1] into [0]
       5 rank 0 copies shard 3 of [1] into [0]
       6 rank 1 copies shard 1 of [0] into [1]
       7 rank 1 copies shard 2 of [0] into [1]
    """
    return around([range(k), range(k)[::-1]])
