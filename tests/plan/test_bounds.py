"""The lower bound: no program beats it, and some come close."""

import math
import random
import sys
from dataclasses import replace
from itertools import combinations

import networkx as nx
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from programs import right_program

from fastreduce import Instruction, Program, explain, simulate, synthesize
from fastreduce.algorithms import registry, ring, sharded
from fastreduce.plan.bounds import _farthest_s, _paid_s, lower_bound
from fastreduce.simulation.costs import EVENTS, costs_of
from fastreduce.topology import Topology, cluster, names, preset
from fastreduce.topology.calibration import Calibration, Curve, Error, Pair

MB = 10**6
TOPOLOGIES = [*map(preset, names()), cluster("pcie5-x8", machines=2, gbit=100, nics=2)]


@pytest.mark.parametrize("topology", TOPOLOGIES, ids=lambda topology: topology.name)
@pytest.mark.parametrize("nbytes", [1, 64_000, 64 * MB])
def test_no_algorithm_beats_it(topology, nbytes):
    bound = lower_bound(topology, len(topology.devices), nbytes)
    for name in {*registry} - {"host", "by-parameter"}:
        program = registry[name](len(topology.devices))
        for slices in (1, 4):
            time_s = simulate(program, topology, nbytes, slices=slices, verify=False).time_s
            assert time_s >= bound.time_s, name


def test_rates_may_be_whole_numbers_of_any_size():
    graph = nx.DiGraph(preset("book-pcie4").graph)
    nx.set_edge_attributes(graph, 10**20, "bytes_per_s")
    fast = Topology("fast", "made up", graph)
    assert lower_bound(fast, 4, MB) < lower_bound(preset("book-pcie4"), 4, MB)


def test_names_do_not_matter():
    topology = cluster("dgx1", machines=2, gbit=100, nics=4).scaled(("m0/gpu3", "m0/gpu0"), 0.3)
    names = list(topology.graph)
    random.Random(0).shuffle(names)
    other = nx.relabel_nodes(topology.graph, {x: f"node {names.index(x):02d}" for x in names})
    found = [lower_bound(x, 16, MB) for x in (topology, replace(topology, graph=other))]
    assert found[0] == found[1]


@given(randoms=st.randoms(use_true_random=False), nbytes=st.sampled_from([1, MB, 1000 * MB]))
@settings(deadline=None, max_examples=30)
def test_no_random_program_does(randoms, nbytes):
    k = randoms.randint(2, 8)
    program = right_program(randoms, k, randoms.randint(1, 4))
    topology = preset(randoms.choice(["dgx1", "dgx-h100", "pcie4-x8"]))
    time_s = simulate(program, topology, nbytes, slices=randoms.randint(1, 3)).time_s
    assert time_s >= lower_bound(topology, k, nbytes).time_s


def mesh(k, links):
    """Up to five GPUs with links between all: bytes per second there and back, and microseconds."""
    graph = nx.DiGraph()
    graph.add_nodes_from([f"gpu{i}" for i in range(k)], kind="gpu", memory_bytes_per_s=2e12)
    for (i, j), (there, back, us) in zip(combinations(range(k), 2), links, strict=False):
        for a, b, rate in ((i, j, there), (j, i, back)):
            graph.add_edge(
                f"gpu{a}", f"gpu{b}", bytes_per_s=rate, latency_s=us * 1e-6, medium="nvlink"
            )
    return Topology("a mesh", "made up", graph)


ten_links = st.lists(
    st.tuples(*[st.sampled_from([1e9, 1e11])] * 2, st.sampled_from([1, 10, 100])),
    min_size=10,
    max_size=10,
)


@given(
    topology=st.builds(mesh, st.integers(3, 5), ten_links), nbytes=st.sampled_from([1, 1000, MB])
)
@example(topology=mesh(3, [(1e11, 1e11, 1), (1e11, 1e11, 1), (1e11, 1e11, 100)]), nbytes=1000)
@settings(max_examples=15)
def test_no_algorithm_does_where_some_links_begin_late(topology, nbytes):
    """A link whose first byte arrives after all is done carries nothing, and not less."""
    k = len(topology.devices)
    bound = lower_bound(topology, k, nbytes)
    for name in {*registry} - {"host", "by-parameter"}:
        time_s = simulate(registry[name](k), topology, nbytes, verify=False).time_s
        assert time_s >= bound.time_s, name


@pytest.mark.parametrize(
    ("latencies_s", "cost_s", "time_s"),
    [
        ([1.0, 1.0], 3.0, 4.0),
        ([1.0, 3.0], 3.0, 5.0),  # 0.5 (T - 1) + 0.5 (T - 3)
        ([1.0, 9.0], 3.0, 7.0),  # the second carries nothing
        ([9.0, 1.0], 3.0, 7.0),
    ],
)
def test_links_pay_from_when_they_begin(latencies_s, cost_s, time_s):
    assert _paid_s(np.array([0.5, 0.5]), np.array(latencies_s), cost_s) == time_s


@pytest.mark.parametrize(
    "program, name",
    [(sharded(8), "dgx-h100"), (sharded(4), "book-pcie4"), (ring(16), "p2.16xlarge")],
)
def test_it_is_tight(program, name):
    """The control: a bound that is 5 % higher is beaten."""
    time_s = simulate(program, name, 8000 * MB, slices=1).time_s
    assert time_s < 1.05 * lower_bound(preset(name), program.k, 8000 * MB).time_s


def one_rank_does_all(k, rank):
    everyone = tuple(range(k))
    return Program(k, 1, [Instruction(rank, 0, everyone, everyone)])


@pytest.mark.parametrize("name", ["dgx1", "dgx-h100", "pcie4-x8"])
@pytest.mark.parametrize("k", [2, 3, 8])
@pytest.mark.parametrize("nbytes", [1, 64_000, 64 * MB])
def test_no_rank_alone_beats_it(name, k, nbytes):
    """Rank 0 alone waits less for other devices; the first three of dgx1 have no link 0 to 2."""
    bound = lower_bound(preset(name), k, nbytes)
    for rank in range(k):
        time_s = simulate(one_rank_does_all(k, rank), preset(name), nbytes).time_s
        assert time_s >= bound.time_s, rank


@pytest.mark.parametrize("name", ["dgx-h100", "dgx-a100", "dgx2-v100"])
def test_it_is_near_for_small_messages(name):
    """What a call waits for around its program is in it."""
    topology = preset(name)
    time_s = simulate(one_rank_does_all(2, 0), topology, 1000).time_s
    assert time_s < 1.15 * lower_bound(topology, 2, 1000).time_s


def test_a_ramp_counts_before_the_first_byte_moves():
    slow = EVENTS._replace(ramp_bytes=1e6)
    program, topology = sharded(8), preset("dgx-h100")
    time_s = simulate(program, topology, 64 * MB, costs=costs_of(program, slow)).time_s
    with_ramp_s = lower_bound(topology, 8, 64 * MB, slow).time_s
    assert lower_bound(topology, 8, 64 * MB).time_s + 2e-6 < with_ramp_s <= time_s


def test_latency_counts_where_bytes_are_few():
    network = cluster("dgx-h100", machines=2, gbit=400, nics=8)
    assert lower_bound(network, 16, 1).what == "latency"
    assert lower_bound(network, 16, MB * 1000).what == "cut"


def test_in_a_row_of_ranks_the_ends_are_joined_by_those_between():
    """By one of them within a launch; by two or three in a second launch, at 100 s."""
    latency_s = np.full((5, 5), math.inf)
    for rank in range(4):
        latency_s[rank, rank + 1] = latency_s[rank + 1, rank] = 1 << rank
    found = [_farthest_s(latency_s[:k, :k], EVENTS._replace(launch_s=100.0)) for k in range(2, 6)]
    assert found == [1, 3, 107, 115]


def test_one_rank_has_nothing_to_do():
    assert lower_bound(preset("dgx1"), 1, MB).time_s == 0


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (("nowhere", 4, 1), "unknown topology 'nowhere'"),
        (("book-pcie4", 0, 1), "k is 0, want 1 to 4, the devices of topology 'book-pcie4'"),
        (("book-pcie4", 5, 1), "k is 5, want 1 to 4"),
        (("book-pcie4", 4, "1 XB"), "'1 XB' is no size"),
    ],
)
def test_what_has_no_bound(wrong, words):
    with pytest.raises(ValueError, match=words):
        lower_bound(*wrong)


def test_a_plan_names_it():
    plan = explain("64MB", topology="dgx-h100")
    assert plan.bound == lower_bound(preset("dgx-h100"), 8, 64 * MB)
    assert "without the host no program can beat 319.2 us (cut); the choice is +0.0%" in str(plan)
    assert "no program can beat" in plan._repr_html_()
    assert explain("64MB", k=2).bound is None


@pytest.mark.parametrize(
    ("part", "key", "bounded"),
    [
        ("cpu0", "memory_bytes_per_s", True),  # as `detect` leaves it: the bound needs no host
        (("cpu0", "cpu1"), "bytes_per_s", False),  # some of the GPUs' messages cross it
    ],
)
def test_a_plan_names_it_if_all_that_it_needs_is_known(part, key, bounded):
    graph = nx.DiGraph(preset("dgx1").graph)
    parts = graph.nodes if part in graph.nodes else graph.edges
    parts[part][key] = None
    plan = explain("64MB", topology=Topology("half known", "made up", graph))
    assert any(math.isnan(x.prediction.time_s) for x in plan.candidates)
    assert (plan.bound is not None) == bounded


class TestAsMeasured:
    """A machine on which our `sharded` was measured, and turned out faster than the figures say."""

    CURVE = Curve(2e-6, 0.0, (Pair(0.0, 50e9), Pair(1e6, 600e9)))

    def machine(self, curve=CURVE, sizes=(1 << 10, 1 << 23)):
        error = Error(0.05, 0.1, 20, "every other point")
        of = Calibration("NVLink", "fastreduce sharded", (8, 8), sizes, curve, error, ("a file",))
        return replace(preset("dgx-h100"), calibrations=(of,))

    @pytest.mark.parametrize("nbytes", [1 << 24, 1 << 30])
    def test_the_bound_is_of_the_machine_on_which_the_times_are(self, nbytes):
        plan = explain(nbytes, topology=self.machine())
        time_s = plan.chosen.prediction.time_s
        assert plan.bound.time_s <= time_s < lower_bound(preset("dgx-h100"), 8, nbytes).time_s

    def test_so_is_the_search(self):
        found = synthesize(self.machine(), 1 << 30, seconds=1)
        plan = explain(1 << 30, topology=self.machine())
        assert found.bound == plan.bound
        assert found.bound.time_s <= found.time_s <= plan.chosen.prediction.time_s

    def test_a_measured_time_that_the_model_does_not_allow_leaves_no_bound(self):
        impossible = self.CURVE._replace(pairs=(Pair(0.0, 1e15), self.CURVE.pairs[1]))
        plan = explain(1 << 20, topology=self.machine(impossible))
        assert plan.chosen.error is not None and plan.bound is None


def test_without_scipy_a_plan_has_no_bound(monkeypatch):
    monkeypatch.setitem(sys.modules, "scipy.sparse", None)
    plan = explain("64MB", topology=preset("dgx-h100"))
    assert plan.bound is None and "no program can beat" not in str(plan)
