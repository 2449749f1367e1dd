"""What a call of the events engine costs around its program: by its rules, or as measured."""

from __future__ import annotations

from typing import TYPE_CHECKING

import networkx as nx

from fastreduce.plan.calibration import Curve
from fastreduce.program import HOST, Program
from fastreduce.simulation.costs import EVENTS, Costs

if TYPE_CHECKING:
    from fastreduce.topology import Topology

# Sizes at which a simulation is all latency, and all bandwidth.
SMALL_BYTES, LARGE_BYTES = 1, 1 << 33


def costs_of(program: Program, costs: Costs = EVENTS) -> Costs:
    """``costs`` with what passes before and after a program's own launches (csrc/cuda/events.cpp).

    The first lane waits for the callers' streams, and they wait for it. Where other lanes work,
    they wait for the first one, and it waits for them. Each operand of the host is copied to the
    host's memory and on, and waited for (csrc/cuda/enqueue.cpp).

    >>> from fastreduce.algorithms import host, leader, sharded
    >>> [round(costs_of(of(4)).call_s * 1e6, 1) for of in (leader, sharded, host)]
    [3.0, 6.0, 27.8]
    """
    elsewhere = any(instruction.rank not in (0, HOST) for instruction in program.instructions)
    waits = 4 if elsewhere else 2
    operands = sum(
        len(instruction.srcs) + len(instruction.dsts)
        for instruction in program.instructions
        if instruction.rank == HOST
    )
    staged_s = operands * (costs.launch_s + costs.event_wait_s)
    return costs._replace(call_s=costs.call_s + waits * costs.event_wait_s + staged_s)


def calibrated(
    topology: Topology, program: Program, curve: Curve, costs: Costs = EVENTS
) -> tuple[Topology, Costs]:
    """The topology and the costs with which a simulation of ``program`` follows a measured curve.

    A small message tells the call, a large one the rate of the links, and what is between them the
    ramp. All links get the same factor, since one curve cannot tell which of them is slow.
    """
    from fastreduce.simulation import simulate

    k = program.k
    base = costs_of(program, costs)

    def simulated_s(machine: Topology, nbytes: int, with_costs: Costs) -> float:
        return simulate(program, machine, nbytes, slices=1, costs=with_costs).time_s

    small_s = simulated_s(topology, SMALL_BYTES, base)
    call_s = max(0.0, costs.call_s + curve.time_s(SMALL_BYTES, k) - small_s)
    bus_bytes = 2 * (k - 1) / k * LARGE_BYTES
    links_s = simulated_s(topology, LARGE_BYTES, base) - small_s
    machine = _scaled(topology, curve.bytes_per_s / (bus_bytes / links_s))
    # How much longer a byte of ramp makes it, whatever the number of steps.
    probe_bytes = 1e6
    ramped_s = simulated_s(machine, LARGE_BYTES, base._replace(ramp_bytes=probe_bytes))
    each_s = (ramped_s - simulated_s(machine, LARGE_BYTES, base)) / probe_bytes
    ramp_bytes = curve.ramp_bytes / curve.bytes_per_s / each_s
    return machine, costs._replace(call_s=call_s, ramp_bytes=ramp_bytes)


def _scaled(topology: Topology, factor: float) -> Topology:
    from fastreduce.topology import Topology

    graph = nx.DiGraph(topology.graph)
    for link, found in topology.graph.edges.items():
        if found["bytes_per_s"] is not None:
            graph.edges[link]["bytes_per_s"] = found["bytes_per_s"] * factor
    source = f"{topology.source}; links times {factor:.3g}, as calibrated"
    return Topology(topology.name, source, graph, topology.calibrations)
