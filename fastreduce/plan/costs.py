"""The costs with which a simulation follows a curve that was measured."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import networkx as nx

from fastreduce.program import Program
from fastreduce.simulation import simulate
from fastreduce.simulation.costs import EVENTS, Costs, costs_of
from fastreduce.topology import Topology
from fastreduce.topology.calibration import Curve
from fastreduce.units import bus_bytes

# Sizes at which a simulation is all latency, and all bandwidth.
SMALL_BYTES, LARGE_BYTES = 1, 1 << 33


def calibrated(
    topology: Topology, program: Program, curve: Curve, costs: Costs = EVENTS
) -> tuple[Topology, Costs]:
    """The topology and the costs with which a simulation of ``program`` follows a measured curve.

    A small message tells the call, a large one the rate of the links, and what is between them the
    ramp. All links get the same factor, since one curve cannot tell which of them is slow. The
    program runs in the engine's slices, as it did when it was measured.
    """
    k = program.k
    base = costs_of(program, costs)

    def simulated_s(machine: Topology, nbytes: int, with_costs: Costs) -> float:
        return simulate(program, machine, nbytes, costs=with_costs).time_s

    small_s = simulated_s(topology, SMALL_BYTES, base)
    call_s = max(0.0, costs.call_s + curve.time_s(SMALL_BYTES, k) - small_s)
    links_s = simulated_s(topology, LARGE_BYTES, base) - small_s
    large = curve.pairs[-1]
    machine = _scaled(topology, large.bytes_per_s / (bus_bytes(LARGE_BYTES, k) / links_s))
    # How much longer a byte of ramp makes it, whatever the number of steps.
    probe_bytes = 1e6
    ramped_s = simulated_s(machine, LARGE_BYTES, base._replace(ramp_bytes=probe_bytes))
    each_s = (ramped_s - simulated_s(machine, LARGE_BYTES, base)) / probe_bytes
    ramp_bytes = large.ramp_bytes / large.bytes_per_s / each_s
    return machine, costs._replace(call_s=call_s, ramp_bytes=ramp_bytes)


@lru_cache(maxsize=8)  # so that bounds, which are kept for a topology, are found once
def _scaled(topology: Topology, factor: float) -> Topology:
    graph = nx.DiGraph(topology.graph)
    for link, found in topology.graph.edges.items():
        if found["bytes_per_s"] is not None:
            graph.edges[link]["bytes_per_s"] = found["bytes_per_s"] * factor
    source = f"{topology.source}; links times {factor:.3g}, as calibrated"
    return replace(topology, source=source, graph=graph)
