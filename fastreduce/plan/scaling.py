"""Seconds of an allreduce on a part of a machine, and on many equal machines."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import permutations
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np

from fastreduce.plan.explain import explain
from fastreduce.simulation.formulas import hierarchical_s, hops, ring_s
from fastreduce.topology.cluster import cluster

if TYPE_CHECKING:
    from fastreduce.topology import Topology

Seconds: TypeAlias = Callable[[float], float]


class Network(NamedTuple):
    """What joins equal machines: cards in each of them, and the rate of a card."""

    nics: int
    gbit: float


def counts(machine: Topology, most_gpus: int) -> Iterator[int]:
    """1, 2, 4 and so on to all GPUs of a machine; then 2, 4 and so on machines.

    >>> from fastreduce.topology import preset
    >>> list(counts(preset("book-pcie4"), 20))
    [1, 2, 4, 8, 16]
    """
    whole = len(machine.devices)
    inside = [1 << power for power in range(whole.bit_length()) if 1 << power < whole]
    outside = [whole << power for power in range(most_gpus.bit_length())]
    return (count for count in [*inside, *outside] if count <= most_gpus)


def allreduce_on(
    machine: Topology, network: Network, gpus: int, sizes: Sequence[int]
) -> tuple[Seconds, str]:
    """The time of an allreduce by its bytes on this many GPUs, and what it was reckoned with.

    Inside a machine the fastest algorithm is simulated for the least, the median and the largest of
    the ``sizes``; between these, time grows evenly. For several machines the better formula counts:
    a flat ring or two levels.
    """
    whole = len(machine.devices)
    if gpus == 1:
        return lambda nbytes: 0.0, "-"
    if gpus > whole:
        return _by_formula(machine, network, gpus // whole), "formula"
    points = sorted({sizes[0], sizes[len(sizes) // 2], sizes[-1]})
    plans = [explain(nbytes, k=gpus, topology=machine) for nbytes in points]
    times_s = [plan.chosen.prediction.time_s for plan in plans]
    return lambda nbytes: float(np.interp(nbytes, points, times_s)), "simulation"


def _by_formula(machine: Topology, network: Network, machines: int) -> Seconds:
    """Two machines show the rates in and between all of them, because they are equal."""
    local = len(machine.devices)
    k, pair = machines * local, 2 * local
    two = cluster(machine, 2, network.gbit, nics=network.nics)
    around = hops(two, [(r, (r + 1) % pair) for r in range(pair)])
    inside = hops(two, permutations(range(local), 2))
    between = hops(two, [(r, (r + local) % pair) for r in range(pair)])
    return lambda nbytes: min(
        ring_s(k, nbytes, around), hierarchical_s(k, machines, nbytes, inside, between)
    )
