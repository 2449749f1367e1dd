"""Rings: the book's on DGX-1, valid ones on anything, and what no ring may pass."""

import itertools
import math
import random

import networkx as nx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from machines import full_mesh, graph_of, topologies, two_gpus

from fastreduce.topology import Ring, Topology, cluster, names, preset, rings
from fastreduce.topology.rings import _Search, both_ways, check, directed

BOOK = [Ring((0, 1, 2, 3, 4, 5, 6, 7), 36e9), Ring((0, 3, 5, 2, 4, 7, 1, 6), 18e9)]


class TestDgx1:
    def test_has_the_two_rings_of_the_book(self):
        assert rings(preset("book-dgx1")) == BOOK
        in_the_book = [[rank + 1 for rank in (*ring.order, 0)] for ring in BOOK]
        assert in_the_book == [[1, 2, 3, 4, 5, 6, 7, 8, 1], [1, 4, 6, 3, 5, 8, 2, 7, 1]]

    def test_has_two_whatever_the_numbering(self):
        machine = preset("dgx1")
        for seed in range(20):
            order = list(machine.devices)
            random.Random(seed).shuffle(order)
            rest = [node for node in machine.graph if node not in order]
            graph = nx.DiGraph()
            graph.add_nodes_from((node, machine.graph.nodes[node]) for node in (*order, *rest))
            graph.add_edges_from(machine.graph.edges(data=True))
            found = rings(Topology("shuffled", "a test", graph))
            assert [ring.bytes_per_s for ring in found] == [45e9, 22.5e9]


class TestOverASwitch:
    @pytest.mark.parametrize(
        "name", sorted({*names()} - {"book-dgx1", "dgx1", "dgx1-v100", "p3.16xlarge"})
    )
    def test_is_one_ring_in_order(self, name):
        machine = preset(name)
        (ring,) = rings(machine)
        assert ring.order == tuple(range(len(machine.devices)))

    def test_has_the_rate_of_its_slowest_step(self):
        # Both steps between the sockets cross their link, one each way.
        assert rings(preset("pcie5-x8"))[0].bytes_per_s == 28e9
        assert rings(preset("book-pcie4"))[0].bytes_per_s == 16e9

    def test_counts_a_link_that_several_steps_share(self):
        nodes = {f"gpu{i}": "gpu" for i in range(3)} | {"a": "switch", "b": "switch"}
        links = [(f"gpu{i}", "a", {}) for i in range(2)] + [("gpu2", "b", {}), ("a", "b", {})]
        graph = graph_of(nodes, links)
        assert rings(Topology("tree", "a test", graph))[0].bytes_per_s == 16e9
        # All ways from one device to another lead through the root: three steps share it.
        star = graph_of(
            {f"gpu{i}": "gpu" for i in range(3)} | {"up": "switch", "down": "switch"}, []
        )
        figures = {"latency_s": 1e-6, "medium": "pcie", "bytes_per_s": 15e9}
        for i in range(3):
            star.add_edge(f"gpu{i}", "up", **figures)
            star.add_edge("down", f"gpu{i}", **figures)
        star.add_edge("up", "down", **figures)
        assert rings(Topology("star", "a test", star))[0].bytes_per_s == 5e9

    def test_keeps_neighbours_near(self):
        nodes = {f"gpu{i}": "gpu" for i in range(6)} | {"a": "switch", "b": "switch"}
        links = [(f"gpu{i}", "ab"[i % 2], {}) for i in range(6)] + [("a", "b", {})]
        (ring,) = rings(Topology("two", "a test", graph_of(nodes, links)))
        assert ring.order == (0, 2, 4, 1, 3, 5)

    def test_uses_direct_links_that_close_no_ring(self):
        graph = two_gpus()
        for i in (2, 3):
            graph.add_node(f"gpu{i}", **graph.nodes["gpu0"])
            graph.add_edge(f"gpu{i}", "switch", **graph.edges["gpu0", "switch"])
            graph.add_edge("switch", f"gpu{i}", **graph.edges["gpu0", "switch"])
        for pair in ((0, 2), (2, 0), (1, 3), (3, 1)):
            graph.add_edge(*(f"gpu{i}" for i in pair), bytes_per_s=50e9, latency_s=1, medium="n")
        (ring,) = rings(Topology("pairs", "a test", graph))
        assert ring == Ring((0, 2, 1, 3), 16e9)


class TestDirect:
    @pytest.mark.parametrize("k", range(3, 17))
    def test_a_full_mesh_is_used_up(self, k):
        machine = full_mesh([[1] * k for _ in range(k)])
        assert len(rings(machine)) == (k - 1) // 2
        check(machine, directed(machine))

    @pytest.mark.parametrize("k", [8, 16])
    def test_the_search_is_bounded(self, k):
        choose = random.Random(k)
        table = [[0.0] * k for _ in range(k)]
        for i in range(k):
            for j in range(i):
                table[i][j] = table[j][i] = choose.random()
        search = _Search(table)
        search.pack(table, [])
        # Beyond the limit each path that is open, and each width, may still take a look.
        assert search.steps_left > -2 * k**2
        assert search.best and sorted(rings(full_mesh(table))) == sorted(search.best)

    def test_two_devices_share_their_link(self):
        assert rings(full_mesh([[0, 5e9], [7e9, 0]])) == [Ring((0, 1), 5e9)]

    def test_the_narrower_direction_counts(self):
        assert rings(full_mesh([[0, 4, 4], [2, 0, 4], [4, 4, 0]])) == [Ring((0, 1, 2), 2)]

    @given(st.integers(2, 7), st.data())
    @settings(max_examples=40)
    def test_on_random_complete_graphs_they_are_valid(self, k, data):
        rates = st.sampled_from([1, 2, 25e9]) | st.floats(1, 1e12)
        table = data.draw(st.lists(st.lists(rates, min_size=k, max_size=k), min_size=k, max_size=k))
        machine = full_mesh(table)
        found = rings(machine)
        check(machine, found)
        assert all(machine.graph.has_edge(*link) for ring in found for link in steps(ring))
        assert [ring.bytes_per_s for ring in found] == sorted(
            (ring.bytes_per_s for ring in found), reverse=True
        )

    @given(st.permutations(range(6)), st.permutations(range(6)))
    @settings(max_examples=40)
    def test_two_rings_laid_out_are_found(self, one, other):
        table = [[0] * 6 for _ in range(6)]
        for order, rate in ((one, 4), (other, 1)):
            for i, j in zip(order, order[1:] + order[:1], strict=True):
                table[i][j] += rate
                table[j][i] += rate
        assert sum(ring.bytes_per_s for ring in rings(full_mesh(table))) == 5


@given(topologies())
@settings(max_examples=60)
def test_on_any_topology_they_are_valid(topology):
    check(topology, rings(topology))


def steps(ring):
    order = [f"gpu{rank}" for rank in ring.order]
    return zip(order, order[1:] + order[:1], strict=True)


def test_one_device_has_a_ring_without_steps():
    assert rings(Topology("one", "a test", graph_of({"gpu0": "gpu"}, []))) == [Ring((0,), math.inf)]


def test_an_unknown_bandwidth_on_the_way_is_refused():
    graph = two_gpus()
    graph.edges["switch", "gpu1"]["bytes_per_s"] = None
    with pytest.raises(ValueError, match=r"'switch' -> 'gpu1' is unknown, and a ring crosses it"):
        rings(Topology("mine", "a test", graph))


def test_an_unknown_bandwidth_elsewhere_does_not_matter():
    graph = two_gpus()
    graph.edges["switch", "cpu0"]["bytes_per_s"] = None
    assert rings(Topology("mine", "a test", graph)) == [Ring((0, 1), 16e9)]


WRONG = {
    "a device is missing": (0, {"order": (0, 1, 2, 3, 4, 5, 6)}, "each of ranks 0 to 7 once"),
    "a device is there twice": (0, {"order": (0, 1, 2, 3, 4, 5, 6, 6)}, "each of ranks 0 to 7"),
    "another starts": (0, {"order": (1, 2, 3, 4, 5, 6, 7, 0)}, "from rank 0"),
    "more than the links carry": (0, {"bytes_per_s": 36.1e9}, r"put 36.1 GB/s on .* carries 36"),
    "a rate of zero": (1, {"bytes_per_s": 0.0}, "its rate is 0.0"),
    "the same links twice": (1, {"order": BOOK[0].order}, "put 54 GB/s on the link .* carries 36"),
    "the same links backwards": (1, {"order": (0, 7, 6, 5, 4, 3, 2, 1)}, "put 54 GB/s on the link"),
    "a step over PCIe": (1, {"order": (0, 4, 6, 3, 5, 2, 7, 1)}, "GB/s on the link"),
}


class TestCheck:
    def test_takes_the_book(self):
        check(preset("book-dgx1"), both_ways(BOOK))

    @pytest.mark.parametrize("case", WRONG)
    def test_control_refuses(self, case):
        index, change, message = WRONG[case]
        wrong = [ring._replace(**change) if i == index else ring for i, ring in enumerate(BOOK)]
        with pytest.raises(ValueError, match=message):
            check(preset("book-dgx1"), both_ways(wrong))


class TestOnSeveralMachines:
    @pytest.mark.parametrize("machines, nics", [(2, 8), (4, 8), (3, 4), (2, 1)])
    def test_there_is_a_ring_for_each_card(self, machines, nics):
        network = cluster("dgx-h100", machines=machines, gbit=400, nics=nics)
        found = rings(network)
        check(network, found)
        assert len(found) == nics
        cards = preset("dgx-h100").graph.edges["gpu0", "pcie0"]["bytes_per_s"]
        assert sum(ring.bytes_per_s for ring in found) == pytest.approx(nics * cards)

    @pytest.mark.parametrize("gbit, rings_found", [(50, 2), (100, 1)])
    def test_there_are_several_only_where_they_carry_more(self, gbit, rings_found):
        """With cards of 100 Gbit/s, two carry as much as one, which each GPU's own link bounds."""
        network = cluster("pcie4-x8", machines=2, gbit=gbit, nics=4)
        assert len(rings(network)) == rings_found

    @pytest.mark.parametrize("machine, gbit", [("dgx1", 100), ("pcie4-x8", 50)])
    def test_inside_of_a_machine_they_go_as_its_own_ring_does(self, machine, gbit):
        """Where GPUs have other neighbours than all others of their machine."""
        network = cluster(machine, machines=2, gbit=gbit, nics=4)
        local = rings(machine)[0].order
        after = dict(zip(local, local[1:] + local[:1], strict=True))
        found = rings(network)
        assert len(found) > 1
        for ring in found:
            first = [rank for rank in ring.order if rank < len(local)]
            skipped = sum(after[rank] != then for rank, then in itertools.pairwise(first))
            assert skipped <= 1  # where it comes from the other machine

    @pytest.mark.parametrize("slow", [(), ("gpu2-pcie2", "gpu1-gpu2")], ids=["whole", "slow"])
    def test_they_run_one_way_and_use_each_direction_of_a_link_by_itself(self, slow):
        """Found when both directions of an NVLink were added up: what fitted was refused."""
        machine = preset("dgx1")
        for link, factor in zip(slow, (0.5, 0.2), strict=False):
            machine = machine.scaled(tuple(link.split("-")), factor)
        network = cluster(machine, machines=2, gbit=100, nics=4)
        assert directed(network) == rings(network) and len(rings(network)) > 1

    @pytest.mark.parametrize("medium", ["nvlink", "network"])
    def test_direct_links_are_used_both_ways_whatever_they_are_called(self, medium):
        machine = full_mesh([[25e9] * 5 for _ in range(5)])
        graph = nx.DiGraph(machine.graph)
        nx.set_edge_attributes(graph, medium, "medium")
        topology = Topology("mesh", "a test", graph)
        assert directed(topology) == both_ways(rings(topology)) and len(rings(topology)) == 2

    def test_they_leave_unequal_machines_alone(self):
        graph = nx.DiGraph(cluster("dgx-h100", machines=2, gbit=400, nics=8).graph)
        graph.remove_node("m1/gpu7")
        assert len(rings(Topology("unequal", "an example", graph))) == 1
