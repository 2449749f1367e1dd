from collections.abc import Sequence
from math import gcd

from fastreduce.algorithms.registration import algorithm
from fastreduce.algorithms.ring import around
from fastreduce.program import Program


@algorithm("multi-ring")
def multi_ring(k: int, rings: Sequence[tuple[Sequence[int], float]] = ()) -> Program:
    """Several rings at once, each over different links and with its own part of the shards.

    *Dive into Deep Learning*, section 12.7.2: the links of eight V100 decompose into one ring of
    double bandwidth and one of single bandwidth.

    Args:
        k: ranks.
        rings: for each ring the order of the ranks and its bandwidth, in any unit, as
            `fastreduce.topology.rings` returns them. A ring gets shards in proportion to its
            bandwidth, rounded to whole multiples of the slowest ring's. Default: rings for a
            machine in which every pair of ranks has a link. The first goes from each rank to the
            next; the second, where there is one, skips the same number of ranks each time, as few
            as possible.

    Raises:
        ValueError: a ring does not hold every rank once, or has no bandwidth.

    >>> print(multi_ring(3, [((0, 1, 2), 36e9), ((0, 2, 1), 18e9)]).shards)
    9
    """
    leaps = [leap for leap in range(1, max(2, k // 2 + 1)) if gcd(leap, k) == 1][:2]
    chosen = rings or [([i * leap % k for i in range(k)], 1.0) for leap in leaps]
    for order, bandwidth in chosen:
        if sorted(order) != list(range(k)) or not bandwidth > 0:
            raise ValueError(
                f"ring {list(order)} with bandwidth {bandwidth}: want each of {k} ranks once, "
                "and a bandwidth above zero"
            )
    slowest = min(bandwidth for _, bandwidth in chosen)
    return around([order for order, b in chosen for _ in range(round(b / slowest))])
