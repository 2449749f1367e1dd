"""What a search finds is proven, reproducible, and never worse than what is known."""

import math
from dataclasses import replace
from itertools import product

import networkx as nx
import pytest
import torch
from sweeps import one_in

import fastreduce
from fastreduce import Program, explain, simulate
from fastreduce.algorithms import registry, sharded
from fastreduce.algorithms.waves import staggered
from fastreduce.simulation.costs import EVENTS
from fastreduce.simulation.run import seconds as seconds_of
from fastreduce.synthesis import synthesize
from fastreduce.synthesis.estimate import estimate_s, shape_of
from fastreduce.synthesis.seeds import seeds
from fastreduce.topology import Topology, cluster, preset
from fastreduce.topology.packing import pack
from fastreduce.topology.traffic import Links

MIB = 1 << 20


@pytest.fixture(autouse=True)
def short_searches(monkeypatch):
    for name in ("WHOLE", "MIXED"):
        monkeypatch.setattr(f"fastreduce.synthesis.search.{name}", 3)


H100 = cluster("dgx-h100", machines=2, gbit=400, nics=8)
TWO = cluster("pcie4-x8", machines=2, gbit=100, nics=2)


def unequal():
    """Two machines, of which one has lost a GPU."""
    graph = TWO.graph.copy()
    graph.remove_node("m1/gpu7")
    return Topology("unequal", "an example", graph)


def part_of_dgx1(k):
    graph = preset("dgx1").graph.copy()
    graph.remove_nodes_from(preset("dgx1").devices[k:])
    return Topology("a part", "an example", graph)


MACHINES = {
    "direct links": preset("dgx1"),
    "two machines": TWO,
    "a broken link": preset("dgx1").without(("gpu0", "gpu3")),
    "unequal machines": unequal(),
}
CASES = list(product([64 * MIB, 4096], MACHINES))


@pytest.mark.parametrize(("nbytes", "machine"), one_in(5, CASES, "searches"))
def test_it_is_proven_and_no_worse_than_the_registered(nbytes, machine):
    topology = MACHINES[machine]
    found = synthesize(topology, nbytes)
    found.program.verify()
    again = simulate(found.program, topology, nbytes)
    assert again.time_s == pytest.approx(found.time_s)
    best = explain(nbytes, topology=topology).chosen.prediction.time_s
    assert found.bound.time_s <= found.time_s <= best * (1 + 1e-9)


@pytest.mark.sweep("searches")
def test_it_is_no_faster_with_a_slower_link():
    """A hundredth of a link once took longer than three thousandths."""
    times_s = [
        synthesize(part_of_dgx1(6).scaled(("gpu0", "gpu1"), share), MIB).time_s
        for share in (1, 0.1, 0.01, 0.003)
    ]
    assert times_s == sorted(times_s)


def test_slow_links_are_those_that_are_left_out():
    links = Links(preset("dgx1").scaled(("gpu0", "gpu3"), 0.3), 8)
    assert {links.names[i] for i in links.slow()} == {("gpu0", "gpu3"), ("gpu3", "gpu0")}
    assert list(Links(preset("dgx1"), 8).slow()) == []  # its single and double links


def test_a_slow_direction_of_the_only_link_is_taken_all_the_same():
    """A switch is another way, so the link could be left out; but then no link would be left."""
    graph = nx.DiGraph()
    graph.add_nodes_from(["gpu0", "gpu1"], kind="gpu", memory_bytes_per_s=2e12)
    graph.add_node("switch", kind="switch")
    pairs = [("gpu0", "gpu1"), ("gpu0", "switch"), ("gpu1", "switch")]
    for pair in [*pairs, *(pair[::-1] for pair in pairs)]:
        graph.add_edge(*pair, bytes_per_s=10e9, latency_s=1e-6, medium="pcie")
    graph.edges["gpu0", "gpu1"]["bytes_per_s"] = 100e9
    topology = Topology("a pair", "an example", graph)
    assert [*Links(topology, 2).slow()] == [1]
    assert (
        synthesize(topology, 64 * MIB).time_s
        == explain(64 * MIB, topology=topology).chosen.prediction.time_s
    )


@pytest.mark.parametrize(
    ("bytes_per_s", "latency_s"), [(1e10, 1e30), (1e29, 1.0), (1e-30, 1e-30), (1e30, 1e-30)]
)
def test_any_figures_of_a_topology_will_do(bytes_per_s, latency_s):
    """Also where one is so far from the others that no linear program takes both."""
    graph = nx.DiGraph()
    graph.add_nodes_from(["gpu0", "gpu1"], kind="gpu", memory_bytes_per_s=2e12)
    for pair in [("gpu0", "gpu1"), ("gpu1", "gpu0")]:
        graph.add_edge(*pair, bytes_per_s=bytes_per_s, latency_s=latency_s, medium="pcie")
    found = synthesize(Topology("a pair", "an example", graph), MIB)
    assert found.time_s >= found.bound.time_s


def test_the_same_call_finds_the_same_program():
    one, other = (synthesize("pcie5-x8", "4MiB") for _ in range(2))
    assert one == other


@pytest.mark.parametrize(
    "topology", one_in(3, [preset("dgx1"), preset("pcie5-x8"), H100], "searches"), ids=str
)
def test_64_mib_are_within_5_percent_of_the_bound(topology):
    found = synthesize(topology, 64 * MIB)
    assert found.time_s <= 1.05 * found.bound.time_s


def test_of_equal_programs_the_shortest_is_found():
    assert synthesize("dgx-h100", "64MiB").program == replace(sharded(8), sliced=1)


def test_small_data_are_not_cut_into_crumbs():
    assert synthesize("dgx1", "64KiB").program.shards <= 64 << 10 >> 9


def test_it_ends_in_time():
    found, known = (
        synthesize("pcie5-x8", "64MiB", seconds=1e-9),
        explain("64MiB", topology="pcie5-x8"),
    )
    assert found.time_s <= known.chosen.prediction.time_s


@pytest.mark.parametrize(("seconds", "one"), [(1e-9, True), (math.inf, False)])
def test_after_the_end_only_the_best_by_the_estimate_is_simulated(monkeypatch, seconds, one):
    simulated = []

    def counted(program, *args, **kwargs):
        simulated.append(program)
        return seconds_of(program, *args, **kwargs)

    monkeypatch.setattr("fastreduce.synthesis.search.simulated_s", counted)
    synthesize("book-pcie4", "1MiB", seconds=seconds)
    assert (len(simulated) == 1) == one


def test_it_can_be_saved_and_run(tmp_path):
    found = synthesize("book-pcie4", "1MiB").program
    found.save(tmp_path / "mine.json")
    x = [torch.ones(999) for _ in range(4)]
    fastreduce.allreduce(x, algorithm=f"file:{tmp_path}/mine.json")
    assert all(tensor.eq(4).all() for tensor in x)


def test_one_device_is_refused():
    graph = preset("dgx1").graph.copy()
    graph.remove_nodes_from([f"gpu{i}" for i in range(1, 8)])
    with pytest.raises(ValueError, match="has 1 device, want at least 2"):
        synthesize(Topology("one", "an example", graph), "1MB")


def test_no_bytes_are_refused():
    with pytest.raises(ValueError, match="nbytes: found 0, want at least 1"):
        synthesize("dgx1", 0)


def test_costs_of_another_type_are_refused():
    with pytest.raises(TypeError, match="costs is 3, want a fastreduce"):
        synthesize("book-pcie4", "1MB", costs=3)


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), "10", None, True], ids=repr)
def test_seconds_that_are_none_are_refused(seconds):
    with pytest.raises(ValueError, match=f"seconds is {seconds!r}, want a number above zero"):
        synthesize("book-pcie4", "1MB", seconds=seconds)


@pytest.mark.parametrize(
    "topology", [preset("dgx1"), TWO, unequal()], ids=["one", "two", "unequal"]
)
def test_every_seed_proves_and_its_estimate_is_near(topology):
    k = len(topology.devices)
    links = Links(topology, k)
    found = list(seeds(topology, k, pack(links)))
    assert len({seed.name for seed in found}) > 12
    for name, program, _ in found:
        program.verify()
        shapes, earliest_s = [shape_of(program, links)], links.earliest_s(0)
        reckoned_s = estimate_s(shapes, ((0, 0),), 64 * MIB, EVENTS, earliest_s)
        # A write stage of its own is not reckoned with.
        if name not in ("leader", "sharded"):
            in_turns = staggered([program], [(0, 0)])
            time_s = simulate(in_turns, topology, 64 * MIB, slices=1, verify=False).time_s
            assert reckoned_s == pytest.approx(time_s, rel=0.5), name


@pytest.mark.parametrize(
    "wrong", [lambda k: Program(k, 1, []), lambda k: 1 / 0], ids=["no allreduce", "it raises"]
)
def test_registered_algorithms_that_are_wrong_are_left_out(monkeypatch, wrong):
    monkeypatch.setitem(registry, "wrong", wrong)
    topology = preset("book-pcie4")
    names = [seed.name for seed in seeds(topology, 4, pack(Links(topology, 4)))]
    assert "ring" in names and "wrong" not in names
