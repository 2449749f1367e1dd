from fastreduce.algorithms.registration import algorithm
from fastreduce.instruction import Instruction
from fastreduce.program import Program


@algorithm("leader")
def leader(k: int) -> Program:
    """Rank 0 reads every rank's buffer, reduces, and writes the result to all.

    The strategy of *Dive into Deep Learning*, section 12.5.4 (sum on one device, copy back), as
    one instruction: nothing is written before it is final. All traffic crosses rank 0's links.

    >>> print(leader(3))
    3 ranks, 1 shard, 1 instruction
       0 rank 0 reduces shard 0 of [0, 1, 2] into [0, 1, 2]
    """
    everyone = tuple(range(k))
    return Program(k, 1, [Instruction(0, 0, everyone, everyone)])
