from fastreduce.algorithms.registration import algorithm
from fastreduce.instruction import Instruction
from fastreduce.program import Program


@algorithm("naive")
def naive(k: int) -> Program:
    """Rank 0 adds one rank after the other to its own buffer, then copies it back to each.

    The loop of *Dive into Deep Learning*, section 12.5.4, as a program, to compare the others with.
    float32 and float64 get the bits of `leader`; 16- and 8-bit floats are rounded at every step
    here.

    >>> print(naive(3))
    3 ranks, 1 shard, 4 instructions
       0 rank 0 reduces shard 0 of [0, 1] into [0]
       1 rank 0 reduces shard 0 of [0, 2] into [0]
       2 rank 0 copies shard 0 of [0] into [1]
       3 rank 0 copies shard 0 of [0] into [2]
    """
    sums = [Instruction(0, 0, (0, rank), (0,)) for rank in range(1, k)]
    copies = [Instruction(0, 0, (0,), (rank,)) for rank in range(1, k)]
    return Program(k, 1, [*sums, *copies])
