from collections.abc import Sequence

from fastreduce.algorithms.registration import algorithm
from fastreduce.instruction import Instruction
from fastreduce.program import Program


@algorithm("ring")
def ring(k: int) -> Program:
    """Each shard goes round a ring twice: k - 1 steps that add, then k - 1 that copy.

    *Dive into Deep Learning*, section 12.7.2 (ring synchronisation); Patarasuk and Yuan, "Bandwidth
    optimal all-reduce algorithms for clusters of workstations", 2009. Each rank pulls from its left
    neighbour into its own buffer: in place, without scratch memory. Shard s starts at rank s, so
    each shard is summed in a different order: the bits are the same on all ranks and in all runs,
    but differ from `leader`'s.

    >>> print(ring(2))
    2 ranks, 2 shards, 4 instructions
       0 rank 0 reduces shard 1 of [1, 0] into [0]
       1 rank 1 reduces shard 0 of [0, 1] into [1]
       2 rank 0 copies shard 0 of [1] into [0]
       3 rank 1 copies shard 1 of [0] into [1]
    """
    return around([range(k)])


def around(orders: Sequence[Sequence[int]]) -> Program:
    """Each order of the ranks is a ring with k shards of its own; all rings run at once.

    A rank's instructions of one step stand side by side, so that one launch serves all rings.
    """
    k = len(orders[0])
    places = [{rank: place for place, rank in enumerate(order)} for order in orders]
    steps: list[Instruction] = []
    for adds in (True, False):
        hops = [
            (rank, i, places[i][rank], (left, rank) if adds else (left,), (rank,))
            for rank in range(k)
            for i, order in enumerate(orders)
            for left in [order[places[i][rank] - 1]]
        ]
        for step in range(k - 1):
            steps += [
                Instruction(rank, i * k + (place - step - adds) % k, srcs, dsts)
                for rank, i, place, srcs, dsts in hops
            ]
    return Program(k, k * len(orders), steps)
