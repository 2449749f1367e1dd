from fastreduce.algorithms.registration import algorithm
from fastreduce.instruction import Instruction
from fastreduce.program import Program


@algorithm("tree")
def tree(k: int) -> Program:
    """Sums go up a binomial tree to rank 0, and the result comes down: 2 log2 k steps.

    Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in MPICH",
    2005. The whole buffer moves in every step, so this is for messages so small that steps cost
    more than bytes. Ranks are summed in pairs, then pairs of pairs, so the bits differ from
    `leader`'s from k = 4 on.

    >>> print(tree(3))
    3 ranks, 1 shard, 4 instructions
       0 rank 0 reduces shard 0 of [0, 1] into [0]
       1 rank 0 reduces shard 0 of [0, 2] into [0]
       2 rank 2 copies shard 0 of [0] into [2]
       3 rank 1 copies shard 0 of [0] into [1]
    """
    distances = [1 << level for level in range((k - 1).bit_length())]
    edges = [(r, r + d) for d in distances for r in range(0, k - d, 2 * d)]
    up = [Instruction(parent, 0, (parent, child), (parent,)) for parent, child in edges]
    down = [Instruction(child, 0, (parent,), (child,)) for parent, child in reversed(edges)]
    return Program(k, 1, [*up, *down])
