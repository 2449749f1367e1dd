from fastreduce.algorithms.registration import algorithm
from fastreduce.program import HOST, Instruction, Program


@algorithm("host")
def host(k: int) -> Program:
    """The host takes every rank's buffer, reduces, and gives the result to all.

    *Dive into Deep Learning*, section 12.7.1: for GPUs that cannot reach each other, 2 k n bytes
    over the links to the CPU. With CUDA tensors the data passes pinned host memory and the first
    GPU does the arithmetic, so that the bits are those of `leader`.

    >>> print(host(3))
    3 ranks, 1 shards, 1 instructions
       0 the host reduces shard 0 of [0, 1, 2] into [0, 1, 2]
    """
    everyone = tuple(range(k))
    return Program(k, 1, [Instruction(HOST, 0, everyone, everyone)])
