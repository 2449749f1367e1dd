"""Pictures of large clusters show one of the machines that are alike."""

from xml.etree import ElementTree

import pytest

from fastreduce import algorithms, draw, simulate
from fastreduce.simulation.busy import Busy
from fastreduce.topology import cluster
from fastreduce.topology.alike import one_of_each
from fastreduce.topology.picture import MOST_DEVICES


def words(what):
    svg = ElementTree.fromstring(draw(what))
    return {e.text for e in svg.iter() if e.tag.endswith("text")}


def machines_in(what):
    return {word.partition("/")[0] for word in words(what) if word.startswith("m") and "/" in word}


@pytest.fixture(scope="module")
def five():
    return cluster("book-pcie4", machines=5, gbit=50)


def kinds_of(topology, colors=None):
    return one_of_each(topology, colors or dict.fromkeys(topology.graph.edges))[1]


CHANGES = {
    "a slower link": lambda whole: whole.scaled(("m3/pcie0", "m3/gpu2"), 0.5),
    "a slower card": lambda whole: whole.scaled(("m3/nic0", "network"), 0.5),
}


def test_whole_machines_are_alike(five):
    assert len(five.devices) > MOST_DEVICES
    assert kinds_of(five) == [["m0", "m1", "m2", "m3", "m4"]]
    assert one_of_each(five, dict.fromkeys(five.graph.edges))[0].devices == five.devices[:4]
    assert machines_in(five) == {"m0"} and "network" in words(five)
    assert "m0 stands for 5: m0, m1, m2, m3, m4" in words(five)


@pytest.mark.parametrize("change", CHANGES)
def test_a_machine_that_differs_is_shown(five, change):
    changed = CHANGES[change](five)
    assert kinds_of(changed) == [["m0", "m1", "m2", "m4"], ["m3"]]
    assert machines_in(changed) == {"m0", "m3"}
    assert "m0 stands for 4: m0, m1, m2, m4" in words(changed)


def test_so_is_one_with_a_broken_link():
    broken = cluster("dgx1", machines=3, gbit=50).without(("m1/gpu0", "m1/gpu1"))
    assert kinds_of(broken) == [["m0", "m2"], ["m1"]]


def test_so_is_one_with_another_colour(five):
    colors = dict.fromkeys(five.graph.edges) | {("m3/gpu0", "m3/pcie0"): "red"}
    assert kinds_of(five, colors) == [["m0", "m1", "m2", "m4"], ["m3"]]


def test_machines_of_a_cluster_of_clusters_are_told_apart():
    found = cluster(cluster("dgx1", machines=2, gbit=50), machines=2, gbit=50, nics=4)
    assert kinds_of(found) == [["m0/m0", "m1/m0"], ["m0/m1", "m1/m1"]]


def test_few_devices_are_all_shown():
    assert machines_in(cluster("book-pcie4", machines=4, gbit=50)) == {"m0", "m1", "m2", "m3"}


def test_the_busy_share_of_one_is_shown_where_all_are_as_busy(five):
    timeline = simulate(algorithms.hierarchical(20, machines=5), five, "16MB", slices=1)
    assert machines_in(Busy(five, timeline)) == {"m0"}
    timeline = simulate(algorithms.leader(20), five, "16MB", slices=1)
    assert machines_in(Busy(five, timeline)) == {"m0", "m1"}
