from fastreduce.algorithms.registration import algorithm
from fastreduce.instruction import HOST, Instruction
from fastreduce.program import Program


@algorithm("host")
def host(k: int) -> Program:
    """The host reads every rank's buffer, reduces, and writes the result to all.

    *Dive into Deep Learning*, section 12.7.1. For GPUs that cannot reach each other: 2 k n bytes
    cross the links to the CPU. CUDA tensors pass through pinned host memory and the first GPU does
    the arithmetic, so that the bits are those of `leader`.

    >>> print(host(3))
    3 ranks, 1 shard, 1 instruction
       0 the host reduces shard 0 of [0, 1, 2] into [0, 1, 2]
    """
    everyone = tuple(range(k))
    return Program(k, 1, [Instruction(HOST, 0, everyone, everyone)])
