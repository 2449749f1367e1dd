from dataclasses import replace

from fastreduce.algorithms.registration import algorithm
from fastreduce.algorithms.sharded import sharded
from fastreduce.program import Program


@algorithm("by-parameter")
def by_parameter(k: int) -> Program:
    """`sharded`, cut between tensors: rank r reduces every k-th tensor, from tensor r on.

    The exercise of *Dive into Deep Learning*, section 12.7 (one parameter server per parameter).
    The bits are those of `leader`. Ranks get equal work only if the tensors have equal sizes.

    >>> print(by_parameter(2))
    2 ranks, 2 shards of whole tensors, 2 instructions
       0 rank 0 reduces shard 0 of [0, 1] into [0, 1]
       1 rank 1 reduces shard 1 of [0, 1] into [0, 1]
    """
    return replace(sharded(k), whole_tensors=True)
