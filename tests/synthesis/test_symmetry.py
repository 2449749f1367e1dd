"""What a search takes for alike: ranks that may change places without any difference."""

import numpy as np
import pytest

from fastreduce.synthesis.symmetry import symmetry_of
from fastreduce.topology import Topology, cluster, preset
from fastreduce.topology.traffic import Links


def machines(count, name="dgx-h100", **changes):
    return cluster(name, machines=count, gbit=400, **{"nics": 8, **changes})


def slow(topology, *cards):
    for card in cards:
        topology = topology.scaled((card, "network"), 0.25)
    return topology


def without(topology, *devices):
    graph = topology.graph.copy()
    graph.remove_nodes_from(devices)
    return Topology(topology.name, "smaller", graph)


# By name: the topology, how many images its ranks have, and one of each kind of rank.
FOUND = {
    "a switch": (preset("dgx-h100"), 8, [0]),
    "links of their own": (preset("dgx1"), 2, [0, 1, 2, 3]),
    "machines": (machines(3), 24, [0]),
    "machines with one card": (machines(2, nics=1), 6, [0, 1, 4, 5]),
    # Through rank 0's card go the messages of rank 3, whose own is slow.
    "a slow card": (slow(machines(2), "m0/nic3"), 6, [0, 1, 3, 8, 9, 11]),
    "a slow card of several machines": (slow(machines(3), "m0/nic3"), 12, [0, 1, 3, 8, 9, 11]),
    "two slow cards of one machine": (slow(machines(2), "m0/nic3", "m0/nic5"), 8, [*range(9)]),
    "nothing alike": (
        without(machines(2, "dgx-a100"), "m1/gpu6", "m1/gpu7", "m0/gpu7"),
        *(1, [*range(13)]),
    ),
}


@pytest.mark.parametrize("name", FOUND)
def test_every_image_is_a_symmetry(name):
    topology, images, roots = FOUND[name]
    links = Links(topology, len(topology.devices))
    found = symmetry_of(links)
    assert len(found.images) == images <= links.k
    assert len({*found.images}) == images
    assert found.roots() == roots
    for image in found.images:
        moved = links.moved(image)
        assert moved is not None
        assert (found.orbit[moved] == found.orbit).all()  # a link becomes one of its orbit
    for one in found.images:  # one after the other is an image again
        assert all(tuple(one[rank] for rank in other) in found.images for other in found.images)


def test_orbits_are_no_larger_than_the_images_make_them():
    links = Links(slow(machines(2), "m0/nic3"), 16)
    found = symmetry_of(links)
    moved = np.array([links.moved(image) for image in found.images])
    for orbit in range(found.orbit.max() + 1):
        of_it = np.flatnonzero(found.orbit == orbit)
        assert {*moved[:, of_it[0]].tolist()} == {*of_it.tolist()}


def test_control_other_turns_are_no_symmetries():
    links = Links(slow(machines(2), "m0/nic3"), 16)
    assert links.moved([*range(8, 16), *range(8)]) is None  # the machines exchanged
    assert links.moved([1, 2, 4, 5, 6, 7, 3, 0, *range(8, 16)]) is None  # with ranks 0 and 3
    assert links.moved([0, 2, 1, *range(3, 16)]) is not None
    links = Links(preset("pcie4-x8"), 8)
    assert links.moved([1, 0, *range(2, 8)]) is not None
    assert links.moved([4, *range(1, 4), 0, *range(5, 8)]) is None
