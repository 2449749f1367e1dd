"""Seconds of an allreduce on a part of a machine, and on many equal machines."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple, TypeAlias

import numpy as np

from fastreduce.algorithms import ring
from fastreduce.plan.explain import explain
from fastreduce.simulation.costs import EVENTS, Costs, costs_of
from fastreduce.simulation.formulas import (
    WAVES,
    Hop,
    hierarchical_s,
    hops,
    levels,
    meshes,
    multi_ring_s,
    ring_s,
    sharded_s,
)
from fastreduce.topology import Topology
from fastreduce.topology.cluster import cluster
from fastreduce.topology.rings import rings

Seconds: TypeAlias = Callable[[float], float]
Formula: TypeAlias = Callable[[int, float], float]


class Network(NamedTuple):
    """What joins equal machines: cards in each of them, and the rate of a card."""

    nics: int
    gbit: float


def counts(machine: Topology, most_gpus: int) -> list[int]:
    """2, 4 and so on to all GPUs of a machine; then 2, 4 and so on machines, and as many as fit.

    >>> from fastreduce.topology import preset
    >>> counts(preset("book-pcie4"), 20)
    [2, 4, 8, 16, 20]
    """
    whole = len(machine.devices)
    inside = [1 << power for power in range(whole.bit_length()) if 1 << power < whole]
    outside = [whole << power for power in range(most_gpus.bit_length())]
    found = {count for count in (*inside, *outside) if 1 < count <= most_gpus}
    if most_gpus > whole:
        found.add(most_gpus // whole * whole)
    return sorted(found)


def in_one_machine(machine: Topology, gpus: int, sizes: Sequence[int]) -> Seconds:
    """The time of an allreduce by its bytes on the first GPUs of a machine, simulated.

    The fastest algorithm counts, at the least, the median and the largest of the ``sizes``; between
    these, time grows evenly.

    >>> from fastreduce.topology import preset
    >>> seconds = in_one_machine(preset("book-pcie4"), 4, [1_000_000, 160_000_000])
    >>> round(seconds(160_000_000) * 1e3)
    15
    """
    points = sorted({sizes[0], sizes[len(sizes) // 2], sizes[-1]})
    plans = [explain(nbytes, k=gpus, topology=machine) for nbytes in points]
    times_s = [plan.chosen.prediction.time_s for plan in plans]
    return lambda nbytes: float(np.interp(nbytes, points, times_s))


def in_machines(machine: Topology, network: Network) -> Callable[[int], Seconds]:
    """For each number of machines, the time of an allreduce over all their GPUs, by formula.

    The fastest counts of a flat ring, of several rings at a time (one for each network card, where
    there are as many), of two levels, and of a shard for each rank.

    Raises:
        ValueError: no card, or a rate that is not above zero.

    >>> from fastreduce.topology import preset
    >>> seconds = in_machines(preset("book-pcie4"), Network(nics=1, gbit=100))
    >>> round(seconds(2)(160_000_000) * 1e3), round(seconds(4)(160_000_000) * 1e3)
    (18, 21)
    """
    two = cluster(machine, 2, network.gbit, nics=network.nics)
    # The costs are those of every program in which all ranks work.
    known = formulas(two, len(machine.devices), costs_of(ring(2)))

    def seconds(machines: int, nbytes: float) -> float:
        return min(formula(machines, nbytes) for formula in known.values())

    return lambda machines: partial(seconds, machines)


def formulas(few: Topology, local: int, costs: Costs = EVENTS) -> dict[str, Formula]:
    """By algorithm, the seconds of an allreduce by the number of machines and the bytes.

    ``few`` tells the rates: a machine of ``local`` GPUs for one machine, two of them for any larger
    number, because all are equal.

    >>> two = cluster("book-pcie4", 2, 100, nics=1)
    >>> {name: round(time_s(2, 160e6) * 1e3) for name, time_s in formulas(two, 4).items()}
    {'ring': 23, 'rail rings': 23, 'hierarchical': 18, 'sharded': 53}
    """
    count = len(few.devices)
    around = hops(few, [(r, (r + 1) % count) for r in range(count)])
    of_rings = _hops_of_rings(few)
    inside, between = levels(few, local)
    of_shards = meshes(few, local)

    def hierarchical(machines: int, nbytes: float) -> float:
        what = machines * local, machines, nbytes, inside, between
        return min(hierarchical_s(*what, waves, costs) for waves in WAVES)

    return {
        "ring": lambda machines, nbytes: ring_s(machines * local, nbytes, around, costs),
        "rail rings": lambda machines, nbytes: multi_ring_s(
            machines * local, nbytes, of_rings, costs
        ),
        "hierarchical": hierarchical,
        "sharded": lambda machines, nbytes: sharded_s(
            machines * local, machines, nbytes, *of_shards, costs
        ),
    }


def _hops_of_rings(topology: Topology) -> list[list[Hop]]:
    """For each rank, its hops of the rings that `rings` finds, while all of these run."""
    orders = [order for order, _ in rings(topology)]
    pairs = [(order[place - 1], rank) for order in orders for place, rank in enumerate(order)]
    into: list[list[Hop]] = [[] for _ in topology.devices]
    for (_, rank), hop in zip(pairs, hops(topology, pairs), strict=True):
        into[rank].append(hop)
    return into
