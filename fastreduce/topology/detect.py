"""The topology of this machine, as its driver describes it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import combinations
from typing import Any, NamedTuple, TypeAlias

import networkx as nx
import torch

from fastreduce.topology.calibration_files import stored
from fastreduce.topology.graph import Topology
from fastreduce.topology.links import (
    EFFICIENCY,
    LATENCY_S,
    PCIE_LANE_BYTES_PER_S,
    connect,
    nvlink_bytes_per_s,
    pcie_bytes_per_s,
)

OTHERWISE = "name a preset, such as dgx-h100, or a topology's file"

# Domain, bus and device on PCIe: so NVML names the other end of an NVLink.
_PciAddress: TypeAlias = tuple[int, int, int]


class _NvLink(NamedTuple):
    """One active link: to the GPU of that index, or to a switch (None)."""

    peer: int | None
    bytes_per_s: float | None


class _Gpu(NamedTuple):
    name: str
    memory_bytes_per_s: float | None
    pcie_bytes_per_s: float | None
    nvlinks: list[_NvLink]


def detect(devices: Iterable[torch.device] = ()) -> Topology:
    """The topology of this machine, read from its driver through NVML.

    Devices are all GPUs in NVML's order, that of the PCIe bus; ``CUDA_VISIBLE_DEVICES`` is ignored.
    With ``devices``, those of torch, these come first, in their order.
    Rates are the nominal rates that NVML reports, times the share that is usually achieved, and
    latencies are typical of the medium (`fastreduce.topology.links`). What NVML does not report is
    None, and listed by `Topology.unknown`: always the CPUs' memory, the links between CPUs, and the
    link from a PCIe switch to its CPU. Two GPUs for which NVML names no common ancestor are shown
    on two CPUs.

    Raises:
        RuntimeError: no driver, no GPU, or the package nvidia-ml-py is missing.

    >>> machine = detect()  # doctest: +SKIP
    """
    try:
        import pynvml
    except ImportError:
        raise RuntimeError(
            "looked for GPUs through NVML and found no package nvidia-ml-py; pip install "
            f"nvidia-ml-py, {OTHERWISE}"
        ) from None
    found: list[Any] = [torch.cuda.get_device_properties(device) for device in devices]
    return _detect(pynvml, [(x.pci_domain_id, x.pci_bus_id, x.pci_device_id) for x in found])


def _detect(nvml: Any, wanted: Iterable[_PciAddress] = ()) -> Topology:
    """``nvml`` is pynvml, or a fake of it in the tests."""
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        raise RuntimeError(
            f"looked for an Nvidia driver through its library NVML (libnvidia-ml): {error}; "
            f"{OTHERWISE}"
        ) from None
    try:
        count = _ask(nvml, "DeviceGetCount") or 0
        handles = [_ask(nvml, "DeviceGetHandleByIndex", index) for index in range(count)]
        if not handles or None in handles:
            lost = f"GPU {handles.index(None)} of {count} does not answer" if handles else "no GPU"
            raise RuntimeError(f"looked for GPUs through NVML and found: {lost}; {OTHERWISE}")
        driver = _ask(nvml, "SystemGetDriverVersion") or "of unknown version"
        addresses = [_pci_address(_ask(nvml, "DeviceGetPciInfo", handle)) for handle in handles]
        gpus = [_read(nvml, handle, addresses) for handle in handles]
        levels = {
            (i, j): _ask(nvml, "DeviceGetTopologyCommonAncestor", handles[i], handles[j])
            for i, j in combinations(range(len(handles)), 2)
        }
    finally:
        nvml.nvmlShutdown()
    source = (
        f"read through NVML, driver {driver}; nominal rates times what is achieved of them, usual "
        "latencies"
    )
    name = f"{len(gpus)} x {gpus[0].name}"
    # A part of a GPU, or one in a virtual machine, may have an address that NVML does not know.
    first = [f"gpu{addresses.index(address)}" for address in wanted if address in addresses]
    return Topology(name, source, _with_first(first, _graph(nvml, gpus, levels)), stored())


def _with_first(gpus: Iterable[str], graph: nx.DiGraph) -> nx.DiGraph:
    """The same graph: a topology's devices are in the order of its nodes."""
    ordered = nx.DiGraph()
    ordered.add_nodes_from((node, graph.nodes[node]) for node in (*gpus, *graph))
    ordered.add_edges_from(graph.edges(data=True))
    return ordered


def _ask(nvml: Any, query: str, *arguments: Any) -> Any:
    """The answer, or None where this driver or device has none."""
    try:
        return getattr(nvml, f"nvml{query}")(*arguments)
    except nvml.NVMLError:
        return None


def _read(nvml: Any, handle: Any, addresses: list[_PciAddress | None]) -> _Gpu:
    clock_mhz = _ask(nvml, "DeviceGetMaxClockInfo", handle, nvml.NVML_CLOCK_MEM)
    bus_bits = _ask(nvml, "DeviceGetMemoryBusWidth", handle)
    # Two transfers per clock: 2619 MHz and 5120 bits give the 3.35 TB/s of the H100's data sheet.
    known = clock_mhz and bus_bits
    memory = 2 * clock_mhz * 1e6 * bus_bits / 8 * EFFICIENCY["memory"] if known else None
    # The maximum of slot and GPU together, because an idle GPU lowers its current generation.
    generation = _ask(nvml, "DeviceGetMaxPcieLinkGeneration", handle)
    lanes = _ask(nvml, "DeviceGetMaxPcieLinkWidth", handle)
    known = generation in PCIE_LANE_BYTES_PER_S and lanes
    pcie = pcie_bytes_per_s(generation, lanes) if known else None
    name = _ask(nvml, "DeviceGetName", handle) or "GPU of unknown name"
    return _Gpu(name, memory, pcie, list(_nvlinks(nvml, handle, addresses)))


def _nvlinks(nvml: Any, handle: Any, addresses: list[_PciAddress | None]) -> Iterator[_NvLink]:
    # From NVML's numbers of NVLink versions to ours. For version 3.1 no rate is published.
    versions = {
        nvml.NVML_NVLINK_VERSION_1_0: 1,
        nvml.NVML_NVLINK_VERSION_2_0: 2,
        nvml.NVML_NVLINK_VERSION_2_2: 2,
        nvml.NVML_NVLINK_VERSION_3_0: 3,
        nvml.NVML_NVLINK_VERSION_4_0: 4,
        nvml.NVML_NVLINK_VERSION_5_0: 5,
    }
    for link in range(nvml.NVML_NVLINK_MAX_LINKS):
        if _ask(nvml, "DeviceGetNvLinkState", handle, link) != nvml.NVML_FEATURE_ENABLED:
            continue
        version = versions.get(_ask(nvml, "DeviceGetNvLinkVersion", handle, link))
        rate = nvlink_bytes_per_s(version, 1) if version else None
        address = _pci_address(_ask(nvml, "DeviceGetNvLinkRemotePciInfo", handle, link))
        if address is not None and address in addresses:
            yield _NvLink(addresses.index(address), rate)
        elif (
            _ask(nvml, "DeviceGetNvLinkRemoteDeviceType", handle, link)
            == nvml.NVML_NVLINK_DEVICE_TYPE_SWITCH
        ):
            yield _NvLink(None, rate)


def _pci_address(pci: Any) -> _PciAddress | None:
    return None if pci is None else (pci.domain, pci.bus, pci.device)


def _graph(nvml: Any, gpus: list[_Gpu], levels: dict[tuple[int, int], int | None]) -> nx.DiGraph:
    graph = nx.DiGraph()
    for index, gpu in enumerate(gpus):
        graph.add_node(f"gpu{index}", kind="gpu", memory_bytes_per_s=gpu.memory_bytes_per_s)
    cpus = _groups(len(gpus), levels, nvml.NVML_TOPOLOGY_NODE)
    for index in range(len(cpus)):
        graph.add_node(f"cpu{index}", kind="cpu", memory_bytes_per_s=None)
    for one, other in combinations(range(len(cpus)), 2):
        pairs = [(min(i, j), max(i, j)) for i in cpus[one] for j in cpus[other]]
        told = all(levels[pair] is not None for pair in pairs)
        connect(graph, f"cpu{one}", f"cpu{other}", "smp" if told else "unknown", None)
    for group in _groups(len(gpus), levels, nvml.NVML_TOPOLOGY_MULTIPLE):
        port = f"cpu{next(i for i, on_cpu in enumerate(cpus) if group <= on_cpu)}"
        if len(group) > 1:
            cpu, port = port, f"pcie{sum(node.startswith('pcie') for node in graph)}"
            graph.add_node(port, kind="switch")
            connect(graph, port, cpu, "pcie", None)
        for index in sorted(group):
            connect(graph, f"gpu{index}", port, "pcie", gpus[index].pcie_bytes_per_s)
    _add_nvlinks(graph, gpus)
    return graph


def _groups(count: int, levels: dict[tuple[int, int], int | None], nearest: int) -> list[set[int]]:
    """Groups of GPUs whose common ancestor is at most ``nearest``, sorted by their first GPU."""
    near = nx.Graph()
    near.add_nodes_from(range(count))
    near.add_edges_from(pair for pair, x in levels.items() if x is not None and x <= nearest)
    return sorted(nx.connected_components(near), key=min)


def _add_nvlinks(graph: nx.DiGraph, gpus: list[_Gpu]) -> None:
    """Add links between the same two nodes as one link, and all NVSwitches as one switch, because
    every GPU is linked to every NVSwitch."""
    bundles: dict[tuple[int, int | None], list[float | None]] = defaultdict(list)
    for index, gpu in enumerate(gpus):
        for link in gpu.nvlinks:
            bundles[index, link.peer].append(link.bytes_per_s)
    for (index, peer), rates in bundles.items():
        known = [rate for rate in rates if rate is not None]
        rate = sum(known) if len(known) == len(rates) else None
        if peer is None:
            graph.add_node("nvswitch", kind="switch")
            connect(graph, f"gpu{index}", "nvswitch", "nvlink", rate)
        else:
            latency_s = 2 * LATENCY_S["nvlink"]
            connect(graph, f"gpu{index}", f"gpu{peer}", "nvlink", rate, latency_s)
