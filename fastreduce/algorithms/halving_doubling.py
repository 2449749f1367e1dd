from fastreduce.algorithms.registration import algorithm
from fastreduce.instruction import Instruction
from fastreduce.program import Program


@algorithm("halving-doubling")
def halving_doubling(k: int) -> Program:
    """Pairs of ranks split the summing between them, log2 k times, then exchange the sums.

    Rabenseifner, "Optimization of collective reduction operations", 2004. Let p be the largest
    power of two up to k. Each rank from p on first adds its data to a partner's, and fetches the
    result from it at the end. The others exchange with the rank whose number differs in one bit:
    first half of the data, then a quarter, and so on, and back. It moves as many bytes as `ring`,
    in 2 log2 p steps, but not only between neighbours. Sums are not in rank order, so the bits
    differ from `leader`'s.

    >>> print(halving_doubling(2))
    2 ranks, 2 shards, 4 instructions
       0 rank 0 reduces shard 0 of [0, 1] into [0]
       1 rank 1 reduces shard 1 of [0, 1] into [1]
       2 rank 0 copies shard 1 of [1] into [0]
       3 rank 1 copies shard 0 of [0] into [1]
    """
    p = 1 << (k.bit_length() - 1)
    bits = [p >> level for level in range(1, p.bit_length())]
    extras = [(rank - p, rank) for rank in range(p, k)]
    fold = [Instruction(r, s, (r, x), (r,)) for r, x in extras for s in range(p)]
    halve = [
        Instruction(r, s, tuple(sorted((r, r ^ bit))), (r,))
        for bit in bits
        for r in range(p)
        for s in _owned(r, bit, p)
    ]
    double = [
        Instruction(r, s, (r ^ bit,), (r,))
        for bit in reversed(bits)
        for r in range(p)
        for s in _owned(r ^ bit, bit, p)
    ]
    unfold = [Instruction(x, s, (r,), (x,)) for r, x in extras for s in range(p)]
    return Program(k, p, [*fold, *halve, *double, *unfold])


def _owned(rank: int, bit: int, p: int) -> range:
    """The shards that a rank sums after the exchanges over this bit and all higher bits."""
    first = rank & ~(bit - 1)
    return range(first, min(first + bit, p))
