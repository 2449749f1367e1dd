"""Machines to test with: small ones by hand, and any connected one."""

import networkx as nx
from hypothesis import strategies as st

from fastreduce.topology import Topology

LINK = {"bytes_per_s": 16e9, "latency_s": 1e-6, "medium": "pcie"}
NODES = {
    "gpu": {"kind": "gpu", "memory_bytes_per_s": 900e9},
    "cpu": {"kind": "cpu", "memory_bytes_per_s": 70e9},
    "switch": {"kind": "switch"},
    "nic": {"kind": "nic"},
}


def graph_of(nodes, links):
    """``nodes``: kind by name; ``links``: (one, other, changes to LINK), the same both ways."""
    graph = nx.DiGraph()
    for node, kind in nodes.items():
        graph.add_node(node, **NODES[kind])
    for one, other, changes in links:
        graph.add_edge(one, other, **(LINK | changes))
        graph.add_edge(other, one, **(LINK | changes))
    return graph


def two_gpus():
    """Two GPUs and a CPU on a switch."""
    nodes = {"gpu0": "gpu", "gpu1": "gpu", "switch": "switch", "cpu0": "cpu"}
    return graph_of(nodes, [(node, "switch", {}) for node in nodes if node != "switch"])


def full_mesh(bandwidths):
    """GPUs linked directly, by a table of bandwidths, 0 for no link; a slow switch joins all."""
    k = len(bandwidths)
    nodes = {f"gpu{rank}": "gpu" for rank in range(k)}
    slow = {"bytes_per_s": 1e-6}
    graph = graph_of(nodes | {"slow": "switch"}, [(gpu, "slow", slow) for gpu in nodes])
    for i in range(k):
        for j in range(k):
            if i != j and bandwidths[i][j]:
                graph.add_edge(f"gpu{i}", f"gpu{j}", **(LINK | {"bytes_per_s": bandwidths[i][j]}))
    return Topology("mesh", "a test", graph)


figures = st.sampled_from([1, 2, 5e9, 16e9]) | st.floats(1e-9, 1e15)


@st.composite
def topologies(draw, known=True):
    """GPUs around a connected middle of other nodes, and direct links between some of them."""
    middle = [f"n{i}" for i in range(draw(st.integers(1, 5)))]
    gpus = [f"gpu{i}" for i in range(draw(st.integers(1, 6)))]
    kinds = {node: draw(st.sampled_from(["cpu", "switch", "nic"])) for node in middle}
    nodes = dict(draw(st.permutations([*kinds.items(), *((gpu, "gpu") for gpu in gpus)])))
    pairs = {(node, draw(st.sampled_from(middle[:i]))) for i, node in enumerate(middle) if i}
    pairs |= {(gpu, draw(st.sampled_from(middle))) for gpu in gpus}
    more = st.tuples(st.sampled_from(list(nodes)), st.sampled_from(list(nodes)))
    pairs |= {(a, b) for a, b in draw(st.lists(more, max_size=6)) if a != b}
    graph = graph_of(nodes, [])
    rates = figures if known else figures | st.none()
    for one, other in sorted(pairs):
        for link in ((one, other), (other, one)):
            changes = {"bytes_per_s": draw(rates), "latency_s": draw(rates)}
            graph.add_edge(*link, **(LINK | changes))
    return Topology("any", "a test", graph)
