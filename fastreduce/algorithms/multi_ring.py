import math
from collections.abc import Sequence

from fastreduce.algorithms.registration import algorithm
from fastreduce.algorithms.ring import around
from fastreduce.program import Program

# Parts of the data for the fastest ring, at most: each adds instructions. Fewer parts than that are
# enough if all rings are then busy for this share of the time (choices).
MOST_PARTS, BUSY = 32, 0.99


@algorithm("multi-ring")
def multi_ring(k: int, rings: Sequence[tuple[Sequence[int], float]] = ()) -> Program:
    """Several rings at once, each over different links and with its own part of the shards.

    *Dive into Deep Learning*, section 12.7.2: the links of eight V100 decompose into one ring of
    double bandwidth and one of single bandwidth.

    Args:
        k: ranks.
        rings: for each ring the order of the ranks and its bandwidth, in any unit, as
            `fastreduce.topology.rings` returns them. The fastest ring gets k to 32 k shards,
            the others in proportion to their bandwidths, as whole multiples of k; a slow ring may
            get none. It is the fewest shards with which rings carry 99 % of what they could
            together; if 32 k are not enough for that, those with which they carry most.
            Default: rings for a machine in which every pair of ranks has a link. The first goes
            from each rank to the next; the second, where there is one, skips the same number of
            ranks each time, as few as possible.

    Raises:
        ValueError: a ring does not hold every rank once, or its bandwidth is not a number above
            zero.

    >>> print(multi_ring(3, [((0, 1, 2), 36e9), ((0, 2, 1), 18e9)]).shards)
    9
    """
    leaps = [leap for leap in range(1, max(2, k // 2 + 1)) if math.gcd(leap, k) == 1][:2]
    chosen = rings or [([i * leap % k for i in range(k)], 1.0) for leap in leaps]
    for order, bandwidth in chosen:
        if sorted(order) != list(range(k)) or not 0 < bandwidth < math.inf:
            raise ValueError(
                f"ring {list(order)} with bandwidth {bandwidth}: want each of {k} ranks once, "
                "and a finite bandwidth above zero"
            )
    parts = _parts([bandwidth for _, bandwidth in chosen])
    return around([order for (order, _), n in zip(chosen, parts, strict=True) for _ in range(n)])


def _parts(bandwidths: Sequence[float]) -> list[int]:
    """How many parts of the data each ring gets.

    >>> _parts([45e9, 22.5e9]), _parts([1e11, 1e5]), _parts([1e11 + 1e5, 1e11])
    ([2, 1], [1, 0], [1, 1])
    """
    shares = [bandwidth / max(bandwidths) for bandwidth in bandwidths]
    # Rounded down, so that no ring holds the fastest one up, but for the share that is allowed.
    tried = [[int(share * most / BUSY) for share in shares] for most in range(1, MOST_PARTS + 1)]
    busy = [_busy(parts, shares) for parts in tried]
    enough = min(BUSY, max(busy))
    return next(parts for parts, found in zip(tried, busy, strict=True) if found >= enough)


def _busy(parts: Sequence[int], shares: Sequence[float]) -> float:
    """Which share of the time rings are busy, on average, until the last one ends."""
    ends = max(n / share for n, share in zip(parts, shares, strict=True) if n)
    return sum(parts) / (ends * sum(shares))
