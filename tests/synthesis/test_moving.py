"""Moves make halves of trees cheaper, and leave them halves of trees."""

import itertools

import numpy as np
import pytest

from fastreduce.synthesis.halves import Half, Side, grown
from fastreduce.synthesis.moving import moved


def cost(side, half):
    ranks = np.arange(len(half.level))
    edges = side.prices[half.level, half.inner, ranks]
    return edges[half.inner != ranks].sum()


def is_valid(side, half):
    """Each edge leads to a rank of a higher level; who writes to a rank is alone in its turn."""
    edges = half.edges()
    higher = all(half.level[inner] > level for level, _, inner in edges)
    ends = [(level // 2, inner) for level, _, inner in edges]
    alone = all(ends.count((level // 2, inner)) == 1 for level, _, inner in edges if level % 2)
    return len(edges) == len(half.level) - 1 and higher and (alone or not side.alone)


def sides(alone, ranks=6, levels=8, count=20):
    rng = np.random.default_rng(ranks)
    for _ in range(count):
        prices = 0.01 + np.round(rng.random((levels, ranks, ranks)) ** 3, 2)  # some are equal
        yield Side(prices, alone)


@pytest.mark.parametrize("alone", [False, True], ids=["down", "up"])
def test_no_half_becomes_dearer(alone):
    costs = []
    for side in sides(alone):
        for root in range(6):
            half = grown(side, root, 7, 0.1)
            found = moved(side, half)
            assert is_valid(side, half) and is_valid(side, found)
            assert found.level[root] == 7 and (found.level == 6).any() >= (
                alone and 6 in half.level
            )
            costs.append((cost(side, half), cost(side, found)))
    before, after = np.array(costs).T
    assert (after <= before * (1 + 1e-9)).all()
    assert after.sum() < 0.9 * before.sum()


def cheapest(side, root, level):
    """Each rank may have any level; its edge leads to the cheapest rank of a higher one."""
    ranks = side.prices.shape[1]
    found = np.inf
    for others in itertools.product(range(level), repeat=ranks - 1):
        levels = np.array([*others[:root], level, *others[root:]])
        edges = np.where(levels > levels[:, None], side.prices[levels, :, np.arange(ranks)], np.inf)
        edges[root] = 0.0
        found = min(found, edges.min(axis=1).sum())
    return found


def test_most_halves_are_the_cheapest():
    without, with_moves = [], []
    for side in sides(False, ranks=4, levels=6):
        least = cheapest(side, 0, 5)
        half = grown(side, 0, 5)
        without.append(cost(side, half) / least)
        with_moves.append(cost(side, moved(side, half)) / least)
        assert with_moves[-1] > 1 - 1e-9
    assert np.mean(with_moves) < 1.02 < 1.15 < np.mean(without)


def test_one_rank_waits_longer_so_that_many_can_send_later():
    """No edge alone is worth a move: ranks 1, 2 and 3 reach the root for 2 at level 0. At level 2
    that costs 3, but from there on the others reach rank 1 for nothing at level 1."""
    prices = np.full((4, 4, 4), 9.0)
    prices[0, 0] = 2.0
    prices[2, 0, 1] = 3.0
    prices[1, 1, 2:] = 0.0
    half = Half(np.array([3, 0, 0, 0]), np.zeros(4, np.intp))
    side = Side(prices, False)
    assert cost(side, half) == 6
    found = moved(side, half)
    assert cost(side, found) == 3
    assert found.level.tolist() == [3, 2, 1, 1] and found.inner.tolist() == [0, 0, 1, 1]


def test_the_root_still_waits_for_someone():
    """It were cheaper if rank 1 sent sooner, but then the root would have the sum too soon."""
    prices = np.ones((4, 2, 2))
    prices[2] = 5.0
    half = Half(np.array([3, 2]), np.zeros(2, np.intp))
    assert moved(Side(prices, True), half).level.tolist() == [3, 2]
    assert moved(Side(prices, False), half).level.tolist() != [3, 2]
