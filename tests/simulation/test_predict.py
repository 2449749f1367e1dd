"""Which limit binds, and how long that takes: by hand where hand can reckon."""

import networkx as nx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastreduce.algorithms import leader, registry, ring, sharded
from fastreduce.simulation.predict import MEMORIES, Memory, in_one_memory, on_topology
from fastreduce.topology import Topology, preset

ROUND = Memory(call_s=1.0, bytes_per_s=10.0, cache_bytes_per_s=100.0, cache_bytes=1000)


@pytest.mark.parametrize(
    ("program", "nbytes", "time_s", "limit"),
    [
        # 2 ranks, 1 byte: 4 bytes touched in a cache of 100 bytes per second.
        (leader(2), 1, 1.04, "launch"),
        # 500 bytes on each rank fill the cache exactly: read twice, written twice.
        (leader(2), 500, 1 + 20, "cache"),
        # One byte more, and both buffers pass the memory both ways.
        (leader(2), 501, 1 + 2 * 2 * 501 / 10, "memory"),
        # Step by step the ring touches 3 (k-1) + 2 (k-1) buffers, here 15; the memory sees 8.
        (ring(4), 200, 1 + 15 * 200 / 100, "cache"),
    ],
)
def test_in_one_memory(program, nbytes, time_s, limit):
    found = in_one_memory(program, nbytes, ROUND)
    assert (found.time_s, found.limit) == (pytest.approx(time_s), limit)


@given(st.sampled_from(sorted(registry)), st.integers(1, 16), st.integers(1, 10**9))
def test_no_program_in_one_memory_beats_a_pass_over_all_buffers(name, k, nbytes):
    found = in_one_memory(registry[name](k), nbytes, MEMORIES["cpu"])
    assert found.time_s >= MEMORIES["cpu"].call_s
    if k * nbytes > MEMORIES["cpu"].cache_bytes:
        assert found.time_s >= 2 * k * nbytes / MEMORIES["cpu"].bytes_per_s


def pair(*, bytes_per_s, latency_s, memory_bytes_per_s):
    graph = nx.DiGraph()
    graph.add_nodes_from(["gpu0", "gpu1"], kind="gpu", memory_bytes_per_s=memory_bytes_per_s)
    for link in [("gpu0", "gpu1"), ("gpu1", "gpu0")]:
        graph.add_edge(*link, bytes_per_s=bytes_per_s, latency_s=latency_s, medium="nvlink")
    return Topology("pair", "made up", graph)


@pytest.mark.parametrize(
    ("machine", "limit"),
    [
        ({"bytes_per_s": 1e9, "latency_s": 1e-9, "memory_bytes_per_s": 1e15}, "link gpu"),
        ({"bytes_per_s": 1e15, "latency_s": 1e-9, "memory_bytes_per_s": 1e9}, "memory"),
        ({"bytes_per_s": 1e15, "latency_s": 1.0, "memory_bytes_per_s": 1e15}, "latency"),
        ({"bytes_per_s": 1e15, "latency_s": 1e-12, "memory_bytes_per_s": 1e15}, "launch"),
    ],
)
def test_the_scarce_thing_binds(machine, limit):
    assert on_topology(ring(2), pair(**machine), 10**8, 1).limit.startswith(limit)


def test_the_link_that_binds_is_named():
    found = on_topology(sharded(8), preset("dgx1-v100"), 160_000_000, 1)
    assert found.limit in ("link cpu0 -> cpu1", "link cpu1 -> cpu0")


def test_one_rank_has_nothing_to_do():
    assert on_topology(ring(1), preset("book-pcie4"), 100, 1) == (0.0, "nothing to do")


def test_one_device_without_links_is_bound_by_something_else():
    graph = nx.DiGraph()
    graph.add_node("gpu0", kind="gpu", memory_bytes_per_s=1e12)
    assert on_topology(sharded(1), Topology("one", "made up", graph), 10**9, 1).limit == "memory"
