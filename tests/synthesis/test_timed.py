"""Trees in time: proven, in the turns that they ask for, and cheap."""

import numpy as np
import pytest

from fastreduce import Program
from fastreduce.algorithms.waves import steps_of
from fastreduce.synthesis.growing import Garden
from fastreduce.synthesis.packing import Links
from fastreduce.synthesis.symmetry import symmetry_of
from fastreduce.synthesis.timed import Prices
from fastreduce.topology import cluster, preset

H100 = cluster("dgx-h100", machines=2, gbit=400, nics=8)


@pytest.mark.parametrize("k, turns", [(2, 1), (5, 3), (8, 6)])
def test_a_tree_is_an_allreduce_in_its_turns(k, turns):
    rng = np.random.default_rng(k)
    found = 0
    for _ in range(20):
        prices = Prices(rng.random((turns, k, k)), rng.choice([0.0, 0.1, 1.0]))
        for root in range(k):
            for turn in range(turns):
                tree = prices.cheapest(root, turn)
                if not tree:
                    continue
                found += 1
                instructions, at = tree.instructions()
                program = Program(k, 1, instructions)
                program.verify()
                assert len(tree.up) == len(tree.down) == k - 1
                assert max(at) < turns
                # No instruction is earlier than those that it depends on allow.
                for x, waits in zip(at, program.dependencies(), strict=True):
                    assert all(at[earlier] < x for earlier in waits)
                assert all(y <= x for x, y in zip(at, steps_of(program), strict=True))
    assert found


def test_it_takes_the_turns_that_cost_nothing():
    prices = np.ones((5, 4, 4))
    prices[[1, 3]] = 0
    tree = Prices(prices).cheapest(0, 1)
    assert {turn for turn, *_ in tree.up} == {1}
    assert all(prices[turn, 0, 0] == 0 for turn, *_ in tree.down)
    assert Prices(prices).cheapest(0, 0) is None or max(Prices(prices).cheapest(0, 0).up)[0] == 0


def test_images_are_alike():
    links = Links(H100, 16)
    symmetry = symmetry_of(links)
    assert sorted(x[0] for x in symmetry.images) == list(range(16))
    assert symmetry.roots() == [0]
    garden = Garden([], links)
    grown = list(garden.grown(np.ones((4, 8)), np.ones((4, 8)), np.inf))
    assert grown
    for which, _ in grown:
        assert garden.seeds[which].program.shards == 16
        garden.seeds[which].program.verify()
        assert symmetry.keeps(garden.shapes[which].busy_s)


def test_a_slower_link_ends_the_symmetry():
    links = Links(H100.scaled(("m0/nic3", "network"), 0.9), 16)
    assert symmetry_of(links).images == (tuple(range(16)),)
    assert Links(preset("pcie4-x8"), 8).moved([1, 0, *range(2, 8)]) is not None
    assert Links(preset("pcie4-x8"), 8).moved([4, *range(1, 4), 0, *range(5, 8)]) is None


def test_a_dear_tree_does_not_grow():
    links = Links(preset("dgx1"), 8)
    garden = Garden([], links)
    prices = np.ones((4, int(garden.symmetry.orbit.max()) + 1))
    assert list(garden.grown(prices, prices, 0.0)) == []
