"""How fast links are: nominal rates by generation, and the share of them that is achieved."""

from __future__ import annotations

import networkx as nx

# The share of the nominal rate that collectives achieve.
# pcie: NCCL assumes 12.0 of the 15.75 GB/s of 16 lanes PCIe 3.0 (src/graph/topo.h).
# network: NCCL assumes 12.0 of 12.5 GB/s at 100 Gbit/s (the same file); 4 cards of 200 Gbit/s reach
# at most 96 of 100 GB/s (nccl-tests issue 119).
# memory: allreduce of 256 MiB on 2, 4 and 8 ranks of one H100 80 GB moves 2.8 to 3.0 of 3.35 TB/s,
# read plus written, and nothing timed beside it more than 3 % faster (2026-11-23,
# benchmarks/results/h100/report.json).
EFFICIENCY = {"pcie": 0.76, "network": 0.96, "memory": 0.88}

# The same for NVLink, by its version. 3 and 4: NCCL's ring on 8 A100 shows about 235 of 300 GB/s
# (NCCL's src/graph/tuning.cc caps it there), on 8 H100 about 370 of 450 (nccl-tests issue 212). 2:
# 8 V100 show 135 of 150 GB/s (Oracle's BM.GPU3.8, fastreduce/plan/published_runs.json), 4 of them
# more than the 20 of 25 GB/s that NCCL assumes for each link (src/graph/topo.h; 22 until 2021). 1:
# NCCL assumes 18 of 20 GB/s. 5: NCCL assumes 40.1 of 50 GB/s.
NVLINK_EFFICIENCY = {1: 0.9, 2: 0.9, 3: 0.8, 4: 0.8, 5: 0.8}

# A ring step between neighbours takes NCCL about 0.5 us (NVLink), 1.0 us (PCIe) and 2.7 us
# (network) with its low-latency protocol (hwLat in NCCL's src/graph/tuning.cc). It crosses two
# links: up to a switch or a CPU, and down. Nothing is published for links between CPUs; PCIe's
# latency is assumed.
LATENCY_S = {
    "nvlink": 0.25e-6,
    "pcie": 0.5e-6,
    "network": 1.35e-6,
    "qpi": 0.5e-6,
    "upi": 0.5e-6,
    "xgmi": 0.5e-6,
}

# The bandwidth of GPU traffic between two sockets, each way, that NCCL assumes (src/graph/topo.h):
# Broadwell, Skylake and Cascade Lake, Emerald Rapids; Zen 2 (Rome), Zen 3 and 4 (Milan, Genoa),
# Zen 5. Sapphire Rapids: NCCL assumes 22, but 8 RTX 5090 on two of them show 28 GB/s busbw (nccl
# issue 1639), all of which crosses the sockets.
SOCKETS_BYTES_PER_S = {
    "broadwell": ("qpi", 6e9),
    "skylake": ("upi", 10e9),
    "sapphire-rapids": ("upi", 28e9),
    "emerald-rapids": ("upi", 40e9),
    "zen2": ("xgmi", 16e9),
    "zen4": ("xgmi", 24e9),
    "zen5": ("xgmi", 32e9),
}

# One link, each way, by NVLink's version. Nvidia's white papers on Pascal, Volta, Ampere, Hopper
# and Blackwell: 4 links have 80, 6 have 150, 12 have 300, 18 have 450 and 18 have 900 GB/s.
NVLINK_BYTES_PER_S = {1: 20e9, 2: 25e9, 3: 25e9, 4: 25e9, 5: 50e9}

# One lane, each way, by PCIe's generation: transfers per second and the line code of the PCI-SIG
# specifications (8b/10b, 128b/130b; generation 6 sends 242 of the 256 bytes of a flit as data).
PCIE_LANE_BYTES_PER_S = {
    1: 2.5e9 * 8 / 10 / 8,
    2: 5e9 * 8 / 10 / 8,
    3: 8e9 * 128 / 130 / 8,
    4: 16e9 * 128 / 130 / 8,
    5: 32e9 * 128 / 130 / 8,
    6: 64e9 * 242 / 256 / 8,
}


def nvlink_bytes_per_s(version: int, links: int) -> float:
    """What ``links`` NVLinks together achieve, each way.

    >>> nvlink_bytes_per_s(version=4, links=18) / 1e9
    360.0
    """
    return NVLINK_BYTES_PER_S[version] * links * NVLINK_EFFICIENCY[version]


def pcie_bytes_per_s(generation: int, lanes: int = 16) -> float:
    """What a PCIe slot achieves, each way.

    >>> round(pcie_bytes_per_s(generation=3) / 1e9, 1)
    12.0
    """
    return PCIE_LANE_BYTES_PER_S[generation] * lanes * EFFICIENCY["pcie"]


def connect(
    graph: nx.DiGraph,
    one: str,
    other: str,
    medium: str,
    bytes_per_s: float | None,
    latency_s: float | None = None,
) -> None:
    """Add a link with equal directions. Default: the latency of the medium, None if unknown."""
    figures = {
        "bytes_per_s": bytes_per_s,
        "latency_s": latency_s or LATENCY_S.get(medium),
        "medium": medium,
    }
    graph.add_edge(one, other, **figures)
    graph.add_edge(other, one, **figures)
