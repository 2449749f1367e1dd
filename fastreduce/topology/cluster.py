"""Many machines on one network."""

from __future__ import annotations

from collections import Counter
from itertools import count

import networkx as nx

from fastreduce.kinds import is_number, is_whole
from fastreduce.topology.calibration_files import published
from fastreduce.topology.graph import Topology
from fastreduce.topology.links import EFFICIENCY, connect
from fastreduce.topology.named import as_topology


def cluster(machine: Topology | str, machines: int, gbit: float, *, nics: int = 1) -> Topology:
    """``machines`` copies of one, each with ``nics`` network cards of ``gbit`` Gbit/s.

    ``machine`` may be a name, as `as_topology` takes it.

    Machine i's nodes are named "m{i}/..."; its ranks follow those of machine i - 1. A machine's
    cards are spread over its PCIe switches in turn, or over its CPUs where it has no switch. A
    card's link is as fast as the fastest PCIe link of its switch. Cards of one switch are one node,
    whose links carry what those of all of them would. One network switch joins all cards and can
    carry the full rate of all of them at once. Cards that the machine has already are not joined.

    Raises:
        ValueError: an unknown machine, no machine, no card, or a rate that is not above zero.

    >>> two = cluster("dgx-h100", machines=2, gbit=400, nics=8)
    >>> two.devices[7:9]
    ('m0/gpu7', 'm1/gpu0')
    >>> [node for _, node in two.route("m0/gpu7", "m1/gpu0")]
    ['m0/pcie7', 'm0/nic7', 'network', 'm1/nic0', 'm1/pcie0', 'm1/gpu0']
    """
    one = as_topology(machine)
    for key, value in (("machines", machines), ("nics", nics)):
        if not is_whole(value) or value < 1:
            raise ValueError(f"cluster of {one.name!r}: {key} is {value!r}, want 1 or more")
    if not is_number(gbit) or not gbit > 0:
        raise ValueError(f"cluster of {one.name!r}: gbit is {gbit!r}, want a rate above zero")
    bytes_per_s = gbit * 1e9 / 8 * EFFICIENCY["network"]
    inside, cards = _with_nics(one.name, one.graph, nics)
    graph = nx.DiGraph()
    for index in range(machines):
        graph.update(nx.relabel_nodes(inside, lambda node, i=index: f"m{i}/{node}"))
    graph.add_node("network", kind="switch")
    for index in range(machines):
        for nic, together in cards.items():
            connect(graph, f"m{index}/{nic}", "network", "network", together * bytes_per_s)
    network = f"{nics} x {gbit:g} Gbit/s"
    source = f"{machines} x {one.name}, {network} each; {one.source}"
    name = f"{machines} x {one.name}"
    unused = one.unused + one.calibrations
    # A machine that only has the name of one whose cluster others measured may have other links.
    known = published(one.name)
    as_measured = bool(known) and all(x in one.calibrations for x in known)
    curves = published(f"{name}, {network}") if as_measured else ()
    return Topology(name, source, graph, curves, unused)


def machines(topology: Topology | str) -> list[list[str]]:
    """The devices of each machine. A machine is a part that only network links join to the rest.

    ``topology`` may be a name, as `as_topology` takes it.

    >>> machines(cluster("book-pcie4", machines=2, gbit=50))[1]
    ['m1/gpu0', 'm1/gpu1', 'm1/gpu2', 'm1/gpu3']
    """
    topology = as_topology(topology)
    parts = machine_parts(topology)
    return [[device for device in topology.devices if device in part] for part in parts]


def machine_parts(topology: Topology) -> list[set[str]]:
    """The nodes of each machine, in the order of their first devices."""
    inside = nx.DiGraph(topology.graph)
    media = topology.graph.edges(data="medium")
    inside.remove_edges_from([(src, dst) for src, dst, medium in media if medium == "network"])
    number = {device: rank for rank, device in enumerate(topology.devices)}
    parts = [part for part in nx.weakly_connected_components(inside) if part & number.keys()]
    return sorted(parts, key=lambda part: min(number[node] for node in part & number.keys()))


def equal_machines(topology: Topology) -> list[list[str]]:
    """The machines, if all have as many devices and ranks go from machine to machine; else none."""
    parts = machines(topology)
    in_order = [device for part in parts for device in part] == list(topology.devices)
    return parts if in_order and len({len(part) for part in parts}) == 1 else []


def _with_nics(name: str, machine: nx.DiGraph, nics: int) -> tuple[nx.DiGraph, dict[str, int]]:
    """The machine with nodes for its cards, and how many cards each of these stands for.

    One node for each card would not do: a route takes one card, so the others would stay idle.
    """
    graph = nx.DiGraph(machine)
    pcie = [link for link in graph.edges if graph.edges[link]["medium"] == "pcie"]
    nodes = list(dict.fromkeys(node for link in pcie for node in link))
    switches = [node for node in nodes if graph.nodes[node]["kind"] == "switch"]
    ports = switches or [node for node in nodes if graph.nodes[node]["kind"] == "cpu"]
    if not ports:
        raise ValueError(
            f"cluster of {name!r}: no switch and no CPU has a link of medium 'pcie', want one that "
            "a network card can be attached to, or a plan of one machine (--machines 1)"
        )
    cards = {}
    names = (nic for nic in map("nic{}".format, count()) if nic not in machine)
    for port, together in Counter(ports[i % len(ports)] for i in range(nics)).items():
        rates = [graph.edges[link]["bytes_per_s"] for link in pcie if port in link]
        nic, each = next(names), None if None in rates else max(rates)
        cards[nic] = together
        graph.add_node(nic, kind="nic")
        connect(graph, nic, port, "pcie", None if each is None else together * each)
    return graph, cards
