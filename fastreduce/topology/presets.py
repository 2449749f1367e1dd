"""Known machines, each with the source of its figures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import networkx as nx

from fastreduce.names import listed
from fastreduce.topology.calibration_files import published
from fastreduce.topology.graph import Topology
from fastreduce.topology.links import (
    EFFICIENCY,
    LATENCY_S,
    SOCKETS_BYTES_PER_S,
    connect,
    nvlink_bytes_per_s,
    pcie_bytes_per_s,
)

# Nominal memory bandwidth in bytes per second: Nvidia's data sheets; for CPUs the channels of a
# socket times their rate, from Intel's and AMD's product pages.
MEMORY = {
    "K80": 240e9,  # one of the two GPUs on a board
    "T4": 320e9,
    "V100": 900e9,
    "A100 80 GB": 2039e9,
    "H100": 3350e9,
    "H200": 4800e9,
    "RTX 4090": 1008e9,
    "RTX 5090": 1792e9,
    "Xeon E5-2698 v4": 4 * 19.2e9,
    "Xeon E5-2686 v4": 4 * 19.2e9,
    "Xeon Platinum 8168": 6 * 21.3e9,
    "Xeon Platinum 8259CL": 6 * 23.5e9,
    "EPYC 7742": 8 * 25.6e9,
    "EPYC 7763": 8 * 25.6e9,
    "Xeon Platinum 8480C": 8 * 38.4e9,
}

# The book counts only the bandwidth of links. With these figures the rest adds nothing to its
# times.
UNCOUNTED_BYTES_PER_S = 1e15
UNCOUNTED_S = 1e-12


def preset(name: str) -> Topology:
    """A known machine by its name; `names` lists them, the topology's ``source`` says more.

    Except in the book's, rates are nominal rates times the share that is achieved
    (`fastreduce.topology.links.EFFICIENCY` and ``NVLINK_EFFICIENCY``).

    Raises:
        ValueError: an unknown name; the message lists the known ones.

    >>> preset("dgx-h100")
    Topology('dgx-h100': 8 GPUs, 19 nodes, 50 links)
    >>> preset("dgx-h100").graph.edges["gpu0", "nvswitch"]["bytes_per_s"] / 1e9
    360.0
    """
    if name not in _PRESETS:
        raise ValueError(f"unknown topology {name!r}; known are {listed(names(), name)}")
    found = _PRESETS[name]()
    return replace(found, calibrations=published(found.name))


def names() -> list[str]:
    """The names that `preset` knows. Some machines have several.

    >>> names()[:3]
    ['book-dgx1', 'book-pcie4', 'dgx-a100']
    """
    return sorted(_PRESETS)


def _machine(
    gpu: str,
    count: int,
    cpu: str,
    pcie: float,
    sockets: str = "",
    switches: Sequence[Sequence[int]] = (),
) -> nx.DiGraph:
    """GPUs on PCIe, with one CPU, or two if ``sockets`` says which link joins them.

    ``switches`` lists the GPUs on each PCIe switch; without it each GPU is linked to a CPU
    directly. GPUs or switches are dealt to the CPUs evenly and in order.
    """
    graph = nx.DiGraph()
    gpus = [f"gpu{rank}" for rank in range(count)]
    cpus = ["cpu0", "cpu1"] if sockets else ["cpu0"]
    for nodes, kind, model in ((gpus, "gpu", gpu), (cpus, "cpu", cpu)):
        memory = MEMORY[model] * EFFICIENCY["memory"]
        graph.add_nodes_from(nodes, kind=kind, memory_bytes_per_s=memory)
    ports = gpus
    if switches:
        ports = [f"pcie{index}" for index in range(len(switches))]
        graph.add_nodes_from(ports, kind="switch")
        for port, ranks in zip(ports, switches, strict=True):
            for rank in ranks:
                connect(graph, gpus[rank], port, "pcie", pcie)
    for index, port in enumerate(ports):
        connect(graph, port, cpus[index * len(cpus) // len(ports)], "pcie", pcie)
    if sockets:
        connect(graph, "cpu0", "cpu1", *SOCKETS_BYTES_PER_S[sockets])
    return graph


def _nvswitched(graph: nx.DiGraph, version: int, links: int) -> nx.DiGraph:
    """All NVSwitches as one: they carry every GPU's full rate to any other GPU."""
    gpus = [node for node, kind in graph.nodes(data="kind") if kind == "gpu"]
    graph.add_node("nvswitch", kind="switch")
    for gpu in gpus:
        connect(graph, gpu, "nvswitch", "nvlink", nvlink_bytes_per_s(version, links))
    return graph


def _book_pcie4() -> Topology:
    source = (
        "Dive into Deep Learning, section 12.7.1: 4 GPUs and the CPU on one PCIe switch, 16 GB/s "
        "per link each way; the book counts neither latency nor memory, nor does this preset"
    )
    graph = nx.DiGraph()
    gpus = [f"gpu{rank}" for rank in range(4)]
    graph.add_nodes_from(gpus, kind="gpu", memory_bytes_per_s=UNCOUNTED_BYTES_PER_S)
    graph.add_node("cpu0", kind="cpu", memory_bytes_per_s=UNCOUNTED_BYTES_PER_S)
    graph.add_node("pcie0", kind="switch")
    for node in (*gpus, "cpu0"):
        connect(graph, node, "pcie0", "pcie", 16e9, UNCOUNTED_S)
    return Topology("book-pcie4", source, graph)


def _book_dgx1() -> Topology:
    source = "Dive into Deep Learning, section 12.7.2: 8 V100, 6 NVLinks each, 18 GB/s per link; "
    return _dgx1("book-dgx1", source, 18e9)


def _dgx1_v100() -> Topology:
    source = "Nvidia, DGX-1 with V100: 6 NVLinks each, 25 GB/s per link, of which 90 % are shown; "
    return _dgx1("dgx1-v100", source, nvlink_bytes_per_s(version=2, links=1))


def _dgx1(name: str, source: str, link_bytes_per_s: float) -> Topology:
    source += (
        "which GPUs are linked, and the PCIe switches and Xeon E5-2698 v4 CPUs: Nvidia, DGX-1 with "
        "Tesla V100 System Architecture (WP-08437). Rank r is GPU r + 1 of Dive into Deep "
        "Learning; ranks 0 to 7 are GPUs 3 0 4 7 6 5 1 2 of nvidia-smi"
    )
    # Nvidia numbers the GPUs by their place on the PCIe bus, the book along its first ring. In the
    # numbering above the links that `nvidia-smi topo -m` shows double on a DGX-1 (0-3 0-4 1-2 1-5
    # 2-3 4-7 5-6 6-7) are that ring, and the single ones (0-1 0-2 1-3 2-6 3-7 4-5 4-6 5-7) are the
    # book's second ring, 1-4-6-3-5-8-2-7-1. PCIe switches hold GPUs 01, 23, 45 and 67.
    switches = [(1, 6), (0, 7), (2, 5), (3, 4)]
    pcie = pcie_bytes_per_s(generation=3)
    graph = _machine("V100", 8, "Xeon E5-2698 v4", pcie, "broadwell", switches)
    for order, links in (((0, 1, 2, 3, 4, 5, 6, 7), 2), ((0, 3, 5, 2, 4, 7, 1, 6), 1)):
        for one, other in zip(order, (*order[1:], 0), strict=True):
            # A direct link takes a whole ring step; up to a switch is half of one.
            latency_s = 2 * LATENCY_S["nvlink"]
            ends = f"gpu{one}", f"gpu{other}"
            connect(graph, *ends, "nvlink", links * link_bytes_per_s, latency_s)
    return Topology(name, source, graph)


def _dgx2_v100() -> Topology:
    source = (
        "Nvidia, DGX-2 data sheet and NVSwitch technical overview: 16 V100, 6 NVLinks each into 12 "
        "NVSwitches that carry all at once, 2 Xeon Platinum 8168. Simplified: one PCIe 3.0 switch "
        "for each four GPUs, where the machine has a tree of them"
    )
    switches = [range(first, first + 4) for first in range(0, 16, 4)]
    pcie = pcie_bytes_per_s(generation=3)
    graph = _machine("V100", 16, "Xeon Platinum 8168", pcie, "skylake", switches)
    return Topology("dgx2-v100", source, _nvswitched(graph, version=2, links=6))


def _dgx_a100() -> Topology:
    source = (
        "Nvidia, DGX A100 System Architecture (WP-10083): 8 A100 80 GB, 12 NVLinks each into 6 "
        "NVSwitches, 2 EPYC 7742, a PCIe 4.0 switch for each two GPUs"
    )
    switches = [(0, 1), (2, 3), (4, 5), (6, 7)]
    pcie = pcie_bytes_per_s(generation=4)
    graph = _machine("A100 80 GB", 8, "EPYC 7742", pcie, "zen2", switches)
    return Topology("dgx-a100", source, _nvswitched(graph, version=3, links=12))


def _dgx_hopper(gpu: str) -> Callable[[], Topology]:
    def build() -> Topology:
        source = (
            f"Nvidia, DGX {gpu} User Guide and {gpu} data sheet: 8 {gpu} SXM, 18 NVLinks each "
            "into 4 NVSwitches, 2 Xeon Platinum 8480C; each GPU on PCIe 5.0 behind the switch of "
            "its own network card"
        )
        switches = [(rank,) for rank in range(8)]
        pcie = pcie_bytes_per_s(generation=5)
        graph = _machine(gpu, 8, "Xeon Platinum 8480C", pcie, "sapphire-rapids", switches)
        return Topology(f"dgx-{gpu.lower()}", source, _nvswitched(graph, version=4, links=18))

    return build


def _g4dn_12xlarge() -> Topology:
    source = (
        "AWS, EC2 G4 instances: 4 T4, 48 virtual CPUs of a Xeon Platinum 8259CL. Assumed: one "
        "socket, each GPU on a port of its own with 8 of the T4's 16 lanes PCIe 3.0"
    )
    pcie = pcie_bytes_per_s(generation=3, lanes=8)
    return Topology("g4dn.12xlarge", source, _machine("T4", 4, "Xeon Platinum 8259CL", pcie))


def _p2_16xlarge() -> Topology:
    source = (
        "AWS, EC2 P2 instances: 8 K80 boards of two GPUs on a common PCIe fabric, Xeon E5-2686 v4. "
        "Assumed: PCIe 3.0 throughout, a switch on each board, one switch over them, one CPU there"
    )
    boards = [(rank, rank + 1) for rank in range(0, 16, 2)]
    pcie = pcie_bytes_per_s(generation=3)
    graph = _machine("K80", 16, "Xeon E5-2686 v4", pcie, switches=boards)
    graph.add_node("fabric", kind="switch")
    for port in list(graph.successors("cpu0")):
        graph.remove_edges_from([(port, "cpu0"), ("cpu0", port)])
        connect(graph, port, "fabric", "pcie", pcie)
    connect(graph, "fabric", "cpu0", "pcie", pcie)
    return Topology("p2.16xlarge", source, graph)


def _consumer(generation: int, gpu: str, cpu: str, sockets: str) -> Callable[[], Topology]:
    def build() -> Topology:
        source = (
            f"An assumed machine: 8 {gpu} on 16 lanes PCIe {generation}.0 each, four on each of 2 "
            f"{cpu}; GPUs reach each other through the CPUs only"
        )
        graph = _machine(gpu, 8, cpu, pcie_bytes_per_s(generation), sockets)
        return Topology(f"pcie{generation}-x8", source, graph)

    return build


_PRESETS: dict[str, Callable[[], Topology]] = {
    "book-pcie4": _book_pcie4,
    "book-dgx1": _book_dgx1,
    "dgx1-v100": _dgx1_v100,
    "dgx1": _dgx1_v100,
    "p3.16xlarge": _dgx1_v100,
    "dgx2-v100": _dgx2_v100,
    "dgx-a100": _dgx_a100,
    "dgx-h100": _dgx_hopper("H100"),
    "dgx-h200": _dgx_hopper("H200"),
    "g4dn.12xlarge": _g4dn_12xlarge,
    "p2.16xlarge": _p2_16xlarge,
    "pcie4-x8": _consumer(4, "RTX 4090", "EPYC 7763", "zen4"),
    # The machine of nccl issue 1639.
    "pcie5-x8": _consumer(5, "RTX 5090", "Xeon Platinum 8480C", "sapphire-rapids"),
}
