"""Many machines on one network."""

from dataclasses import replace

import networkx as nx
import pytest

from fastreduce import explain
from fastreduce.topology import Topology, cluster, names, preset, rings
from fastreduce.topology.links import connect


@pytest.mark.parametrize("name", names())
@pytest.mark.parametrize(("machines", "nics"), [(1, 1), (2, 1), (3, 4)])
def test_any_preset(name, machines, nics):
    one, many = preset(name), cluster(name, machines, 100, nics=nics)
    assert many.devices == tuple(f"m{i}/{gpu}" for i in range(machines) for gpu in one.devices)
    cards = [x for x, kind in many.graph.nodes(data="kind") if kind == "nic"]
    rates = [many.graph.edges[x, "network"]["bytes_per_s"] for x in cards]
    assert sum(rates) == machines * nics * 12e9
    assert all(many.host_of(x).startswith(x.split("/")[0]) for x in many.devices)
    assert many.unknown() == []


def test_each_machine_is_the_preset():
    one, many = preset("dgx1"), cluster("dgx1", 2, 100)
    for i in range(2):
        for (src, dst), found in one.graph.edges.items():
            assert many.graph.edges[f"m{i}/{src}", f"m{i}/{dst}"] == found


def test_between_machines_the_way_leads_over_the_cards():
    many = cluster("pcie4-x8", 2, 10)
    way = [node for _, node in many.route("m0/gpu5", "m1/gpu0")]
    assert way == ["m0/cpu1", "m0/cpu0", "m0/nic0", "network", "m1/nic0", "m1/cpu0", "m1/gpu0"]


@pytest.mark.parametrize(
    ("name", "nics", "of_nodes"),
    [
        ("dgx-h100", 8, [1] * 8),
        ("dgx-a100", 8, [2] * 4),
        ("dgx1", 6, [2, 2, 1, 1]),
        ("pcie4-x8", 8, [4, 4]),
        ("book-pcie4", 3, [3]),
    ],
)
def test_cards_of_one_port_are_a_node_that_carries_what_all_of_them_do(name, nics, of_nodes):
    many, one = cluster(name, 2, 100, nics=nics), cluster(name, 2, 100, nics=1)
    slot = one.graph.out_edges("m0/nic0", data=True)
    (slot_bytes_per_s,) = (x["bytes_per_s"] for _, to, x in slot if to != "network")
    for place, together in enumerate(of_nodes):
        links = {to: x["bytes_per_s"] for _, to, x in many.graph.out_edges(f"m0/nic{place}", True)}
        assert links.pop("network") == together * 12e9
        assert [*links.values()] == [together * slot_bytes_per_s]
    assert f"m0/nic{len(of_nodes)}" not in many.graph


@pytest.mark.parametrize("name", ["dgx-a100", "dgx1"])
def test_each_further_card_saves_time_and_lowers_the_bound(name):
    plans = [explain("1GB", topology=cluster(name, 2, 100, nics=nics)) for nics in (4, 8)]
    assert plans[1].chosen.prediction.time_s < 0.95 * plans[0].chosen.prediction.time_s
    assert plans[1].bound.time_s < 0.65 * plans[0].bound.time_s


def test_cards_that_a_machine_has_already_are_not_joined():
    graph = nx.DiGraph(preset("dgx-h100").graph)
    graph.add_nodes_from(["nic0", "mlx5_1"], kind="nic")
    connect(graph, "nic0", "pcie5", "pcie", 50e9)
    connect(graph, "mlx5_1", "pcie1", "pcie", 50e9)
    many = cluster(Topology("mine", "a test", graph), 2, 400, nics=2)
    assert {*many.graph.predecessors("network")} == {f"m{i}/nic{n}" for i in (0, 1) for n in (1, 2)}
    assert [*many.graph.successors("m0/nic0")] == ["m0/pcie5"]


def test_a_cluster_of_clusters_has_a_network_of_its_own():
    two = cluster("dgx1", 2, 100, nics=2)
    four = cluster(two, 2, 100, nics=1)
    assert {*four.graph.predecessors("network")} == {"m0/nic0", "m1/nic0"}
    assert {*four.graph.predecessors("m1/network")} == {
        f"m1/m{i}/nic{n}" for i in (0, 1) for n in (0, 1)
    }


def test_what_others_measured_holds_for_the_preset_only_and_not_for_its_name():
    own = cluster("dgx-h100", 2, 400, nics=8)
    slow = preset("dgx-h100").scaled(("gpu0", "nvswitch"), 0.01)
    named = cluster(replace(slow, name="dgx-h100"), 2, 400, nics=8)
    assert own.calibrations and not named.calibrations


def test_rings_go_machine_by_machine_and_use_every_card():
    found = rings(cluster("dgx-a100", 3, 200, nics=4))
    for ring in found:
        onward = zip(ring.order, (*ring.order[1:], ring.order[0]), strict=True)
        assert sum(src // 8 != dst // 8 for src, dst in onward) == 3
    assert sum(ring.bytes_per_s for ring in found) == pytest.approx(4 * 23.95e9, rel=1e-3)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("dgx9", 2, 100), "unknown topology 'dgx9'"),
        (("dgx1", 0, 100), "machines is 0, want 1 or more"),
        (("dgx1", 2.5, 100), r"machines is 2\.5"),
        (("dgx1", True, 100), "machines is True, want 1 or more"),
        (("dgx1", 2, "400"), "gbit is '400', want a rate above zero"),
        (("dgx1", 2, 0), "gbit is 0, want a rate above zero"),
        (("dgx1", 2, float("nan")), "gbit is nan"),
    ],
)
def test_refuses(arguments, message):
    with pytest.raises(ValueError, match=message):
        cluster(*arguments)


def test_refuses_no_cards():
    with pytest.raises(ValueError, match="nics is 0, want 1 or more"):
        cluster("dgx1", 2, 100, nics=0)
