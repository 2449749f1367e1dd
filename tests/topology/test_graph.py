"""Topologies: what is refused, and which way routes go."""

import itertools
import math

import networkx as nx
import pytest
from hypothesis import given, settings
from machines import graph_of, topologies, two_gpus

from fastreduce.topology import Topology, preset


def with_node(**changes):
    graph = two_gpus()
    graph.nodes["gpu1"].update(changes)
    return graph


def with_link(**changes):
    graph = two_gpus()
    graph.edges["gpu0", "switch"].update(changes)
    return graph


def without(what, key):
    graph = two_gpus()
    del (graph.nodes["gpu1"] if what == "node" else graph.edges["gpu0", "switch"])[key]
    return graph


def cut(*links):
    graph = two_gpus()
    graph.remove_edges_from(links)
    return graph


def changed(graph, change):
    change(graph)
    return graph


def through_a_gpu():
    nodes = {"gpu0": "gpu", "gpu1": "gpu", "gpu2": "gpu"}
    return graph_of(nodes, [("gpu0", "gpu1", {}), ("gpu1", "gpu2", {})])


NODE, LINK = "node 'gpu1'", "link 'gpu0' -> 'switch'"
BAD = {
    "no graph": (None, "its graph is a NoneType, want a networkx DiGraph"),
    "undirected": (nx.Graph(), "its graph is a Graph, want a networkx DiGraph"),
    "many links": (nx.MultiDiGraph(), "its graph is a MultiDiGraph"),
    "empty": (nx.DiGraph(), "has no GPU, want at least one node of kind 'gpu'"),
    "no gpu": (graph_of({"cpu0": "cpu"}, []), "has no GPU"),
    "a number as name": (changed(two_gpus(), lambda g: g.add_node(7)), "node 7: its name"),
    "no kind": (without("node", "kind"), f"{NODE}: kind is None, want one of gpu, cpu, switch"),
    "unknown kind": (with_node(kind="tpu"), f"{NODE}: kind is 'tpu', want one of gpu, cpu"),
    "a list as kind": (with_node(kind=["gpu"]), f"{NODE}: kind is ['gpu']"),
    "no memory": (without("node", "memory_bytes_per_s"), f"{NODE} is without 'memory_bytes_per_s'"),
    "an unknown key": (with_node(watts=300), f"{NODE} is with 'watts', which is not known"),
    "zero memory": (with_node(memory_bytes_per_s=0), f"{NODE}: memory_bytes_per_s is 0, want byte"),
    "no bandwidth": (without("link", "bytes_per_s"), f"{LINK} is without 'bytes_per_s'"),
    "no latency": (without("link", "latency_s"), f"{LINK} is without 'latency_s'"),
    "no medium": (without("link", "medium"), f"{LINK} is without 'medium'"),
    "an empty medium": (with_link(medium=""), f"{LINK}: medium is '', want a name"),
    "zero bandwidth": (with_link(bytes_per_s=0.0), f"{LINK}: bytes_per_s is 0.0, want bytes per"),
    "negative bandwidth": (with_link(bytes_per_s=-1), f"{LINK}: bytes_per_s is -1"),
    "NaN bandwidth": (with_link(bytes_per_s=math.nan), f"{LINK}: bytes_per_s is nan"),
    "infinite bandwidth": (with_link(bytes_per_s=math.inf), f"{LINK}: bytes_per_s is inf"),
    "bandwidth in words": (with_link(bytes_per_s="16e9"), f"{LINK}: bytes_per_s is '16e9'"),
    "true bandwidth": (with_link(bytes_per_s=True), f"{LINK}: bytes_per_s is True"),
    "a bandwidth beyond floats": (with_link(bytes_per_s=10**400), f"{LINK}: bytes_per_s is 1000"),
    "a bandwidth next to none": (with_link(bytes_per_s=5e-324), f"{LINK}: bytes_per_s is 5e-324"),
    "zero latency": (with_link(latency_s=0), f"{LINK}: latency_s is 0, want seconds above zero"),
    "negative latency": (with_link(latency_s=-1e-6), f"{LINK}: latency_s is -1e-06"),
    "a loop": (
        changed(two_gpus(), lambda g: g.add_edge("gpu0", "gpu0")),
        "link 'gpu0' -> 'gpu0' leads nowhere",
    ),
    "disconnected": (
        cut(("gpu0", "switch"), ("switch", "gpu0")),
        "no links lead from 'gpu0' to 'gpu1'",
    ),
    "one way only": (cut(("gpu1", "switch")), "no links lead from 'gpu1' to 'gpu0'"),
    "through a GPU": (through_a_gpu(), "no links lead from 'gpu0' to 'gpu2'"),
}


class TestRefuses:
    @pytest.mark.parametrize("case", BAD)
    def test_says_where_and_what(self, case):
        graph, message = BAD[case]
        with pytest.raises(ValueError) as error:
            Topology("mine", "a test", graph)
        assert str(error.value).startswith("topology 'mine'")
        assert message in str(error.value)

    @pytest.mark.parametrize("key", ["name", "source"])
    def test_no_words(self, key):
        words = {"name": "mine", "source": "a test"} | {key: ""}
        with pytest.raises(ValueError, match=f"its {key} is '', want words"):
            Topology(**words, graph=two_gpus())

    def test_control_the_unchanged_one_is_taken(self):
        assert Topology("mine", "a test", two_gpus()).devices == ("gpu0", "gpu1")

    def test_one_gpu_alone_is_enough(self):
        assert Topology("mine", "a test", graph_of({"gpu0": "gpu"}, [])).devices == ("gpu0",)


class TestRoutes:
    def test_a_direct_link_is_preferred_however_narrow(self):
        graph = two_gpus()
        graph.add_edge("gpu0", "gpu1", bytes_per_s=1, latency_s=1, medium="wire")
        found = Topology("mine", "a test", graph)
        assert found.route("gpu0", "gpu1") == (("gpu0", "gpu1"),)
        assert found.route("gpu1", "gpu0") == (("gpu1", "switch"), ("switch", "gpu0"))

    @pytest.mark.parametrize(
        ("one", "other", "way"),
        [
            ({}, {"bytes_per_s": 17e9}, "other"),
            ({"latency_s": 2e-6}, {}, "other"),
            ({"bytes_per_s": None}, {"bytes_per_s": 1}, "other"),
            ({"latency_s": 2e-6}, {"latency_s": None}, "other"),
            ({}, {}, "one"),
        ],
        ids=["wider", "faster", "known", "unknown latency", "first"],
    )
    def test_of_two_ways(self, one, other, way):
        nodes = {"gpu0": "gpu", "gpu1": "gpu", "one": "switch", "other": "switch"}
        links = [(g, s, c) for g in ("gpu0", "gpu1") for s, c in (("one", one), ("other", other))]
        found = Topology("mine", "a test", graph_of(nodes, links))
        assert found.route("gpu0", "gpu1") == (("gpu0", way), (way, "gpu1"))

    @pytest.mark.parametrize("first", ["gpu0", "one", "other"])
    def test_of_two_ways_wherever_the_links_begin(self, first):
        nodes = dict.fromkeys(("one", "other"), "switch") | dict.fromkeys(("gpu0", "gpu1"), "gpu")
        links = [("gpu0", "one", {}), ("gpu1", "one", {})]
        links += [(gpu, "other", {"latency_s": 2e-6}) for gpu in ("gpu0", "gpu1")]
        found = Topology("mine", "a test", graph_of({first: nodes[first]} | nodes, links))
        for src, dst in itertools.permutations(("gpu0", "gpu1")):
            assert found.route(src, dst) == ((src, "one"), ("one", dst))

    def test_no_wide_detour_to_what_lies_behind_a_narrow_link(self):
        nodes = {"gpu0": "gpu", "a": "switch", "b": "switch", "gpu1": "gpu"}
        wide, narrow = {"bytes_per_s": 32e9}, {"bytes_per_s": 1e9}
        links = [
            ("gpu0", "a", wide),
            ("a", "b", wide),
            ("gpu0", "b", narrow),
            ("b", "gpu1", narrow),
        ]
        found = Topology("mine", "a test", graph_of(nodes, links))
        assert found.route("gpu0", "gpu1") == (("gpu0", "b"), ("b", "gpu1"))

    def test_pairs_without_nvlink_go_over_pcie_on_dgx1(self):
        machine = preset("dgx1-v100")
        media = {
            (i, j): {machine.graph.edges[x]["medium"] for x in machine.route(f"gpu{i}", f"gpu{j}")}
            for i, j in itertools.permutations(range(8), 2)
        }
        assert sum(found == {"nvlink"} for found in media.values()) == 8 * 4
        assert sum(found == {"pcie", "qpi"} for found in media.values()) == 8 * 3

    def test_nowhere(self):
        assert preset("book-pcie4").route("gpu0", "gpu0") == ()

    @pytest.mark.parametrize("pair", [("gpu0", "gpu9"), ("gpu9", "gpu0"), ("gpu9", "gpu9")])
    def test_unknown_nodes(self, pair):
        with pytest.raises(ValueError, match=r"has no node 'gpu9'; it has gpu0, .*, pcie0"):
            preset("book-pcie4").route(*pair)

    def test_a_node_that_no_link_leads_to(self):
        graph = two_gpus()
        graph.remove_edge("switch", "cpu0")
        with pytest.raises(ValueError, match="no links lead from 'gpu0' to 'cpu0'"):
            Topology("mine", "a test", graph).route("gpu0", "cpu0")

    @given(topologies(known=False))
    @settings(max_examples=60)
    def test_are_paths_that_pass_no_gpu(self, topology):
        for src, dst in itertools.permutations(topology.devices, 2):
            route = topology.route(src, dst)
            assert is_path(topology, src, dst, route)
            assert topology.route(src, dst) is route

    @given(topologies())
    @settings(max_examples=60)
    def test_none_is_better(self, topology):
        for src, dst in itertools.permutations(topology.devices, 2):
            if not topology.graph.has_edge(src, dst):
                middle = [x for x in topology.graph if x not in topology.devices]
                ways = nx.all_simple_edge_paths(
                    topology.graph.subgraph([*middle, src, dst]), src, dst
                )
                assert quality(topology, topology.route(src, dst)) == min(
                    quality(topology, way) for way in ways
                )

    def test_control_what_is_no_path_is_found(self):
        machine = preset("dgx1-v100")
        for route in (
            (),
            (("gpu0", "gpu1"),),
            (("gpu0", "pcie1"), ("cpu0", "gpu2")),
            (("gpu0", "gpu1"), ("gpu1", "gpu2")),
        ):
            assert not is_path(machine, "gpu0", "gpu2", route)


def is_path(topology, src, dst, route):
    nodes = [src, *(link[1] for link in route)]
    return (
        list(route) == list(itertools.pairwise(nodes))
        and nodes[-1] == dst
        and all(link in topology.graph.edges for link in route)
        and not set(nodes[1:-1]) & set(topology.devices)
    )


def quality(topology, route):
    links = [topology.graph.edges[link] for link in route]
    latency_s = 0.0
    for link in links:
        latency_s += link["latency_s"]
    return -min(link["bytes_per_s"] for link in links), len(links), latency_s


class TestHost:
    @pytest.mark.parametrize(
        ("name", "on_first"),
        [
            ("book-pcie4", {0, 1, 2, 3}),
            ("dgx1-v100", {0, 1, 6, 7}),
            ("dgx-h100", {0, 1, 2, 3}),
            ("pcie4-x8", {0, 1, 2, 3}),
        ],
    )
    def test_is_the_cpu_of_its_socket(self, name, on_first):
        machine = preset(name)
        hosts = [machine.host_of(device) for device in machine.devices]
        assert {rank for rank, host in enumerate(hosts) if host == "cpu0"} == on_first

    def test_needs_a_cpu(self):
        graph = two_gpus()
        graph.remove_node("cpu0")
        with pytest.raises(ValueError, match=r"'gpu0' reaches no CPU, found CPUs \[\]; add a node"):
            Topology("mine", "a test", graph).host_of("gpu0")

    def test_needs_a_device(self):
        with pytest.raises(ValueError, match="has no node 'gpu9'"):
            preset("book-pcie4").host_of("gpu9")


class TestUnknown:
    def test_is_listed_by_name(self):
        graph = two_gpus()
        graph.nodes["cpu0"]["memory_bytes_per_s"] = None
        graph.edges["gpu1", "switch"].update(bytes_per_s=None, latency_s=None)
        assert Topology("mine", "a test", graph).unknown() == [
            "memory_bytes_per_s of node 'cpu0'",
            "bytes_per_s of link 'gpu1' -> 'switch'",
            "latency_s of link 'gpu1' -> 'switch'",
        ]

    def test_is_nothing_in_the_presets(self):
        assert preset("dgx1").unknown() == []


class TestGraph:
    def test_is_a_copy_and_frozen(self):
        graph = two_gpus()
        found = Topology("mine", "a test", graph)
        graph.edges["gpu0", "switch"]["bytes_per_s"] = 0
        graph.remove_node("cpu0")
        assert found.graph.edges["gpu0", "switch"]["bytes_per_s"] == 16e9
        assert found.host_of("gpu0") == "cpu0"
        with pytest.raises(nx.NetworkXError, match="Frozen"):
            found.graph.remove_node("cpu0")

    def test_devices_are_in_the_order_of_the_graph(self):
        graph = graph_of({"b": "gpu", "s": "switch", "a": "gpu"}, [("a", "s", {}), ("b", "s", {})])
        assert Topology("mine", "a test", graph).devices == ("b", "a")
