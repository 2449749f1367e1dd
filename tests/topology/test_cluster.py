"""Many machines on one network."""

import pytest

from fastreduce.topology import cluster, names, preset, rings


@pytest.mark.parametrize("name", names())
@pytest.mark.parametrize(("machines", "nics"), [(1, 1), (2, 1), (3, 4)])
def test_any_preset(name, machines, nics):
    one, many = preset(name), cluster(name, machines, 100, nics=nics)
    assert many.devices == tuple(f"m{i}/{gpu}" for i in range(machines) for gpu in one.devices)
    cards = [x for x, kind in many.graph.nodes(data="kind") if kind == "nic"]
    assert len(cards) == machines * nics
    assert {many.graph.edges[x, "network"]["bytes_per_s"] for x in cards} == {12e9}
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
