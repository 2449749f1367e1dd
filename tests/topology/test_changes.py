"""Machines with something less: a link, a share of its bandwidth, peer access."""

import itertools
import re

import networkx as nx
import pytest
from hypothesis import given, settings
from machines import graph_of, topologies, two_gpus

from fastreduce import algorithms, simulate
from fastreduce.topology import Topology, cluster, load, names, preset, save


def one_way():
    graph = two_gpus()
    graph.add_edge("gpu0", "gpu1", bytes_per_s=20e9, latency_s=1e-6, medium="nvlink")
    return Topology("mine", "a test", graph)


class TestWithout:
    @pytest.mark.parametrize("link", [("gpu0", "gpu7"), ("gpu7", "gpu0"), ["gpu0", "gpu7"]])
    def test_neither_direction_is_left_whichever_is_named(self, link):
        machine = preset("dgx1")
        found = machine.without(link)
        gone = {("gpu0", "gpu7"), ("gpu7", "gpu0")}
        assert set(found.graph.edges) == set(machine.graph.edges) - gone
        assert found.devices == machine.devices

    def test_a_link_of_one_direction(self):
        assert set(one_way().without(("gpu1", "gpu0")).graph.edges) == set(two_gpus().edges)

    def test_says_so(self):
        found = preset("dgx1").without(("gpu0", "gpu7"))
        assert found.name == "dgx1-v100 without gpu0 - gpu7"
        assert found.source == preset("dgx1").source + "; without gpu0 - gpu7"

    def test_the_machine_itself_stays(self):
        machine = preset("dgx1")
        machine.without(("gpu0", "gpu7"))
        assert machine.graph.edges == preset("dgx1").graph.edges

    def test_rings_go_other_ways(self):
        ring = algorithms.ring(8)
        times_s = [
            simulate(ring, machine, "160MB").time_s
            for machine in (preset("dgx1"), preset("dgx1").without(("gpu3", "gpu4")))
        ]
        assert times_s[1] > 2 * times_s[0]

    def test_the_last_link_is_refused(self):
        with pytest.raises(ValueError, match="without gpu0 - pcie0': no links lead from 'gpu0'"):
            preset("book-pcie4").without(("gpu0", "pcie0"))


class TestScaled:
    def test_both_directions(self):
        machine = preset("dgx-h100")
        found = machine.scaled(("gpu0", "nvswitch"), 0.5)
        assert found.name == "dgx-h100 with 0.5 x gpu0 - nvswitch"
        for link, figures in machine.graph.edges.items():
            factor = 0.5 if set(link) == {"gpu0", "nvswitch"} else 1
            changed = figures | {"bytes_per_s": figures["bytes_per_s"] * factor}
            assert found.graph.edges[link] == changed

    def test_half_the_bandwidth_takes_twice_as_long(self):
        machine = preset("book-pcie4")
        slow = machine
        for node in ("gpu0", "gpu1", "gpu2", "gpu3"):
            slow = slow.scaled((node, "pcie0"), 0.5)
        times_s = [simulate(algorithms.sharded(4), m, "160MB").time_s for m in (machine, slow)]
        assert times_s[1] == pytest.approx(2 * times_s[0], rel=1e-3)

    @pytest.mark.parametrize("factor", [0, -1, float("nan"), float("inf"), "2", True, None])
    def test_no_factor(self, factor):
        with pytest.raises(ValueError, match=r"factor is .*, want a number above zero"):
            preset("dgx1").scaled(("gpu0", "gpu1"), factor)

    def test_beyond_any_machine(self):
        with pytest.raises(ValueError, match=r"bytes_per_s is 4\.5e\+38, want bytes per second"):
            preset("dgx1").scaled(("gpu0", "gpu1"), 1e28)

    def test_an_unknown_bandwidth(self):
        graph = two_gpus()
        graph.edges["switch", "gpu0"]["bytes_per_s"] = None
        with pytest.raises(ValueError, match="of link 'switch' -> 'gpu0' is unknown, and cannot"):
            Topology("mine", "a test", graph).scaled(("gpu0", "switch"), 2)


@pytest.mark.parametrize(
    ("link", "message"),
    [
        (
            ("gpu0", "gpu4"),
            "no link between 'gpu0' and 'gpu4'; 'gpu0' is linked with pcie1, gpu1",
        ),
        (("gpu0", "gpu9"), "has no node 'gpu9'; it has gpu0, gpu1"),
        (("gpu9", "gpu0"), "has no node 'gpu9'"),
        (("gpu0", "gpu0"), "no link between 'gpu0' and 'gpu0'"),
        ("gpu0", "link is 'gpu0', want the names of its ends"),
        (("gpu0", "gpu1", "gpu2"), "want the names of its ends"),
        ((0, 1), "link is \\(0, 1\\), want the names"),
        (None, "link is None"),
    ],
)
def test_links_that_are_none(link, message):
    for change in (Topology.without, lambda machine, link: machine.scaled(link, 2)):
        with pytest.raises(ValueError, match=message):
            change(preset("dgx1"), link)


def machines():
    presets = {name: preset(name) for name in names()}
    two = {f"2 x {name}": cluster(name, 2, 100, nics=3) for name in ("dgx1", "p2.16xlarge")}
    return presets | two


MACHINES = machines()


def passes_cpus(topology):
    """Whether each way from GPU to GPU passes a CPU of each of the two machines (or the one)."""
    graph = topology.graph
    cpus = [node for node, kind in graph.nodes(data="kind") if kind == "cpu"]
    ports = {f"{cpu} {port}" for cpu in cpus for port in ("in", "out")}
    rest = graph.subgraph(node for node in graph if node not in ports.union(cpus))
    return not any(
        nx.has_path(rest, src, dst) for src, dst in itertools.permutations(topology.devices, 2)
    )


def rates(graph):
    """Of each link but those to memory, with both halves of a node under its own name."""
    whole = {node: re.sub(" (up|down|in|out)$", "", node) for node in graph}
    found = [
        ((whole[s], whole[d]), x["bytes_per_s"])
        for (s, d), x in graph.edges.items()
        if x["medium"] != "memory"
    ]
    assert len(dict(found)) == len(found)  # no direction of a link is there twice
    return dict(found)


class TestWithoutPeerAccess:
    @pytest.mark.parametrize("name", MACHINES)
    def test_all_ways_between_gpus_pass_a_cpu(self, name):
        found = MACHINES[name].without_peer_access()
        assert passes_cpus(found)
        assert found.devices == MACHINES[name].devices
        assert found.name == f"{MACHINES[name].name} without peer access"

    def test_control_with_peer_access_they_need_not(self):
        passing = {name for name, machine in MACHINES.items() if passes_cpus(machine)}
        assert passing == {"g4dn.12xlarge", "pcie4-x8", "pcie5-x8"}

    @given(topologies())
    @settings(max_examples=60)
    def test_on_any_machine_with_cpus(self, topology):
        try:
            found = topology.without_peer_access()
        except ValueError as error:
            assert "no CPU" in str(error) or "no links lead from" in str(error)
        else:
            assert passes_cpus(found)

    @pytest.mark.parametrize("name", MACHINES)
    def test_no_bandwidth_is_added(self, name):
        machine = MACHINES[name]
        whole, found = rates(machine.graph), rates(machine.without_peer_access().graph)
        assert found.items() <= whole.items()
        media = {machine.graph.edges[link]["medium"] for link in whole.keys() - found.keys()}
        assert media <= {"nvlink"}

    @pytest.mark.parametrize("name", MACHINES)
    def test_twice_is_once(self, name):
        once = MACHINES[name].without_peer_access()
        assert once.without_peer_access().graph.edges == once.graph.edges

    @pytest.mark.parametrize(
        ("program", "expected_s"),
        [
            # All GPUs share 16 GB/s up to the CPU, and 16 down.
            (algorithms.ring(4), 6 * 4 * 40e6 / 16e9),
            (algorithms.sharded(4), 2 * 12 * 40e6 / 16e9),
            (algorithms.leader(4), 2 * 3 * 160e6 / 16e9),
            (algorithms.host(4), 2 * 4 * 160e6 / 16e9),
        ],
    )
    def test_the_book_without_it(self, program, expected_s):
        machine = preset("book-pcie4").without_peer_access()
        found_s = simulate(program, machine, "160MB", slices=1).time_s
        assert found_s == pytest.approx(expected_s, rel=1e-3)

    def test_the_host_takes_as_long_as_before(self):
        machine, host = preset("dgx1"), algorithms.host(8)
        times_s = [
            simulate(host, m, "1GB").time_s for m in (machine, machine.without_peer_access())
        ]
        assert times_s[0] == pytest.approx(times_s[1])

    def test_between_machines_network_cards_take_from_the_cpu(self):
        machine = cluster("dgx-h100", 2, 400, nics=8).without_peer_access()
        way = [node for _, node in machine.route("m0/gpu3", "m1/gpu5")]
        assert way[:4] == ["m0/pcie3 up", "m0/cpu0 in", "m0/cpu0 out", "m0/pcie0 down"]
        assert way[-3:] == ["m1/cpu1 out", "m1/pcie5 down", "m1/gpu5"]

    @pytest.mark.parametrize(("k", "published"), [(4, 35), (8, 28)])
    def test_host_memory_limits_eight_rtx_5090_as_published(self, k, published):
        """nccl issue 1639, GB/s busbw: 4 of them share one socket's memory, 8 cross the sockets."""
        machine = preset("pcie5-x8").without_peer_access()
        found = simulate(algorithms.ring(k), machine, "8GB", slices=1).busbw
        assert found / 1e9 == pytest.approx(published, rel=0.05)

    def test_control_with_peer_access_memory_does_not_limit(self):
        found = simulate(algorithms.ring(4), "pcie5-x8", "8GB", slices=1).busbw
        assert found / 1e9 > 1.3 * 35

    def test_memory_of_unknown_rate_does_not_limit(self):
        graph = preset("book-pcie4").graph.copy()
        graph.nodes["cpu0"]["memory_bytes_per_s"] = None
        machine = Topology("half known", "a test", graph).without_peer_access()
        assert [node for _, node in machine.route("gpu0", "gpu1")][1] == "cpu0"

    def test_can_be_saved(self, tmp_path):
        machine = preset("dgx1").without_peer_access()
        save(machine, tmp_path / "mine.json")
        assert load(tmp_path / "mine.json").graph.edges == machine.graph.edges

    def test_needs_a_cpu(self):
        nodes = {"gpu0": "gpu", "gpu1": "gpu"}
        pair = Topology("pair", "a test", graph_of(nodes, [("gpu0", "gpu1", {})]))
        with pytest.raises(ValueError, match="'pair' has no CPU over which GPUs could reach"):
            pair.without_peer_access()
