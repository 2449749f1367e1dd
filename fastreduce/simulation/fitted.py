"""Algorithms whose program depends on the topology: its own rings, or its machines."""

from __future__ import annotations

from fastreduce.algorithms import hierarchical, multi_ring
from fastreduce.algorithms.waves import in_waves
from fastreduce.program import Program
from fastreduce.simulation.formulas import best_waves, levels
from fastreduce.topology import Topology
from fastreduce.topology.cluster import equal_machines
from fastreduce.topology.rings import directed

# A plan should not take long: with more, one takes seconds on 2 cores.
MOST_INSTRUCTIONS = 25_000


def fitted(found: Program, name: str, topology: Topology, nbytes: int) -> Program:
    """The program of the algorithm ``name`` for all devices of a topology, ``nbytes`` per rank.

    For "multi-ring" and "hierarchical" it is not ``found``, which the name stands for in a call.

    >>> from fastreduce.topology import preset
    >>> fitted(multi_ring(8), "multi-ring", preset("dgx1"), 4096).shards
    48
    """
    if found.k == 1:
        return found
    if name == "multi-ring":
        return multi_ring(found.k, directed(topology))
    if name == "hierarchical" and (parts := equal_machines(topology)):
        whole = hierarchical(found.k, len(parts))
        return in_waves(whole, _waves(whole, len(parts), topology, nbytes))
    return found


def _waves(whole: Program, machines: int, topology: Topology, nbytes: int) -> int:
    if machines == 1:
        return 1
    most = max(1, MOST_INSTRUCTIONS // len(whole.instructions))
    inside, between = levels(topology, whole.k // machines)
    return min(most, best_waves(whole.k, machines, nbytes, inside, between))
