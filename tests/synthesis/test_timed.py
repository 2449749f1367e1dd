"""Trees in time: proven, in the turns that they ask for, and cheap."""

import numpy as np
import pytest

from fastreduce import Program
from fastreduce.synthesis.cheap import Prices
from fastreduce.synthesis.growing import Garden
from fastreduce.synthesis.symmetry import symmetry_of
from fastreduce.synthesis.timed import TimedTree
from fastreduce.topology import cluster, preset
from fastreduce.topology.traffic import Links

H100 = cluster("dgx-h100", machines=2, gbit=400, nics=8)


def program_of(tree, k):
    return Program(k, 1, tree.instructions()[0])


def keeps_its_turns(tree, k):
    """No instruction is earlier than those that it depends on allow."""
    turns, waits = tree.instructions()[1], program_of(tree, k).dependencies()
    return all(turns[x] < turn for turn, of in zip(turns, waits, strict=True) for x in of)


@pytest.mark.parametrize("k, turns", [(2, 1), (5, 3), (8, 6)])
def test_a_tree_is_an_allreduce_in_its_turns(k, turns):
    rng = np.random.default_rng(k)
    found = []
    for _ in range(10):
        prices = Prices(np.round(rng.random((turns, k, k)) ** 3, 2))
        haste = rng.choice([0.0, 0.1, 1.0])
        tried = [prices.cheap(root, turn, haste) for root in range(k) for turn in range(turns)]
        found += [tree for tree in tried if tree]
    for tree in found:
        _, at = tree.instructions()
        program = program_of(tree, k)
        program.verify()
        assert len(tree.up) == len(tree.down) == k - 1
        assert max(at) < turns
        assert keeps_its_turns(tree, k)
        assert all(y <= x for x, y in zip(at, program.steps(), strict=True))
    handed = sum(moment % 2 for tree in found for moment, *_ in tree.up)
    assert found and (handed > 0 or turns == 1)


# Rank 2 sums its own and rank 3's data in the first turn and hands the sum to rank 1.
HANDED = TimedTree(0, 1, [(0, 3, 2), (1, 2, 1), (2, 1, 0)], [(3, 0, 1), (4, 0, 2), (5, 2, 3)])


def test_a_sum_can_be_handed_over():
    instructions, turns = HANDED.instructions()
    assert [str(x) for x in instructions[:2]] and turns == [0, 1, 2]
    first, second, last = instructions
    assert first[0] == 2 and set(first.srcs) == {1, 2, 3} and first.dsts == (1,)
    assert second[0] == 0 and set(second.srcs) == {0, 1} and second.dsts == (0, 1)
    assert last[0] == 2 and last.srcs == (0,) and last.dsts == (2, 3)
    program_of(HANDED, 4).verify()
    assert keeps_its_turns(HANDED, 4)
    # It costs a message in each direction.
    assert [x for x in HANDED.messages() if {*x[1:]} == {1, 2}] == [(0, 2, 1), (0, 1, 2)]


@pytest.mark.parametrize(
    "up",
    [
        [(1, 3, 1), (1, 2, 1), (2, 1, 0)],  # two ranks hand theirs to the same one
        [(0, 3, 1), (1, 2, 1), (2, 1, 0)],  # while it sums itself
    ],
)
def test_nobody_else_may_use_what_is_handed_over_to(up):
    assert not keeps_its_turns(HANDED._replace(up=up), 4)


def test_it_takes_the_turns_that_cost_nothing():
    prices = np.ones((5, 4, 4))
    prices[[1, 3]] = 0
    tree = Prices(prices).cheap(0, 1)
    assert {moment for moment, *_ in tree.up} == {2}
    assert {prices[turn, 0, 0] for turn, *_ in tree.messages()} == {0}
    assert Prices(prices).cheap(0, 0) is None or max(Prices(prices).cheap(0, 0).up)[0] == 0


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


def test_a_dear_tree_does_not_grow():
    links = Links(preset("dgx1"), 8)
    garden = Garden([], links)
    prices = np.ones((4, int(garden.symmetry.orbit.max()) + 1))
    assert list(garden.grown(prices, prices, 0.0)) == []
