"""The slowest cut of a topology whose links are not equally fast in both directions."""

from __future__ import annotations

import networkx as nx
import numpy as np

from fastreduce.topology.traffic import Floats, Links


def slowest_cut(links: Links) -> tuple[float, Floats]:
    """Seconds per byte of the cut with the least bandwidth in one direction, and each link's part
    of that bandwidth.

    Devices on one side of a cut send at least one message to the other side for each byte of an
    allreduce: what they have must get there. The cut is found by maximum flows from the first
    device to each other one, and back.

    >>> from fastreduce.topology import preset
    >>> seconds, parts = slowest_cut(Links(preset("book-pcie4"), 4))
    >>> round(1 / seconds / 1e9, 2), int((parts > 0).sum())
    (16.0, 1)
    """
    graph = nx.DiGraph()
    for link, rate in zip(links.names, links.bytes_per_s, strict=True):
        graph.add_edge(*link, capacity=float(rate))
    first, *others = links.devices
    ends = [pair for other in others for pair in ((first, other), (other, first))]
    rate, (side, _) = min((nx.minimum_cut(graph, *pair) for pair in ends), key=lambda cut: cut[0])
    crosses = np.array([src in side and dst not in side for src, dst in links.names])
    return 1 / rate, crosses * links.bytes_per_s / rate
