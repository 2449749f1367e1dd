"""Algorithms whose program depends on the topology: its own rings, or its machines."""

from __future__ import annotations

from fastreduce.algorithms import hierarchical, multi_ring
from fastreduce.algorithms.waves import in_waves
from fastreduce.program import Program
from fastreduce.topology import Topology, machines, rings
from fastreduce.topology.cluster import equal_machines
from fastreduce.topology.rings import both_ways

# A wave of `hierarchical` is half a MiB of each shard: with less, launches cost more than the
# overlap saves (predicted). A plan should not take long either: the other two are predicted to be
# enough.
WAVE_BYTES, MOST_WAVES, MOST_INSTRUCTIONS = 1 << 19, 16, 25_000


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
        return _rings_both_ways(topology)
    if name == "hierarchical" and (parts := equal_machines(topology)):
        whole = hierarchical(found.k, len(parts))
        return in_waves(whole, _waves(whole, nbytes)) if len(parts) > 1 else whole
    return found


def _waves(whole: Program, nbytes: int) -> int:
    most = min(MOST_WAVES, MOST_INSTRUCTIONS // len(whole.instructions))
    return max(1, min(most, nbytes // whole.shards // WAVE_BYTES))


def _rings_both_ways(topology: Topology) -> Program:
    """Each ring in both directions, because links carry data both ways at once. Rail rings go one
    way: together they use both directions of every card."""
    each, parts = rings(topology), machines(topology)
    if len(each) > 1 and len(parts) > 1:
        return multi_ring(len(topology.devices), each)
    return multi_ring(len(topology.devices), both_ways(each))
