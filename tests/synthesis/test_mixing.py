"""How much of the data starts in which turn: the shares that make the turns short."""

import math
from types import SimpleNamespace

import numpy as np
import pytest

from fastreduce.simulation.costs import BOOK, EVENTS
from fastreduce.synthesis.estimate import Shape, estimate_s
from fastreduce.synthesis.growing import Garden
from fastreduce.synthesis.mixing import TURNS, _InTurns, mixtures
from fastreduce.synthesis.rounding import Begun, copies_of
from fastreduce.synthesis.seeds import seeds
from fastreduce.synthesis.symmetry import Symmetry
from fastreduce.topology import preset
from fastreduce.topology.packing import pack
from fastreduce.topology.traffic import Links

# The first step keeps link 0 busy for a second per byte, the second step link 1.
TWO_STEPS = Shape(1, np.eye(2))
# In one step, but its link is not as fast.
ONE_STEP = Shape(1, np.array([[0.0, 0.0, 3.0]]))


def barren(*shapes):
    """Where no tree grows."""
    links = shapes[0].busy_s.shape[1]
    return SimpleNamespace(
        shapes=list(shapes), symmetry=Symmetry(((0, 1),), np.arange(links)), grown=lambda *_: []
    )


def in_turns(garden, turns, nbytes, idle_s):
    problem = _InTurns(garden, turns, nbytes, idle_s, 1.0)
    problem.begin(range(len(garden.shapes)))
    return problem.solved()


@pytest.mark.parametrize("turns", [2, 3, 4, 9])
@pytest.mark.parametrize("idle_s", [0.0, 0.25])
def test_copies_follow_each_other(turns, idle_s):
    time_s, shares = in_turns(barren(TWO_STEPS), turns, 1, np.full(2, idle_s))
    # Each of turns - 1 copies keeps both links busy as long.
    assert time_s == pytest.approx(turns / (turns - 1) + turns * idle_s)
    assert shares == pytest.approx({(0, turn): 1 / (turns - 1) for turn in range(turns - 1)})


def test_another_program_takes_what_other_links_can_carry():
    shapes = [Shape(1, np.array([[1.0, 0.0, 0.0]])), ONE_STEP]
    time_s, shares = in_turns(barren(*shapes), 1, 8, np.zeros(3))
    assert shares == pytest.approx({(0, 0): 3 / 4, (1, 0): 1 / 4})
    assert time_s == pytest.approx(6)


def test_turns_end_where_no_more_can_pay():
    def tried(costs):
        return len([*mixtures(barren(TWO_STEPS), 1, costs, np.zeros(2), 1.0)])

    assert tried(BOOK) == len(TURNS) - 1  # in one turn there is no time for two steps
    assert tried(EVENTS._replace(launch_s=0.05)) < len(TURNS) - 4


def test_a_mixture_takes_as_long_as_was_reckoned():
    every = mixtures(barren(TWO_STEPS), 12, BOOK, np.zeros(2), 1.0)
    for turns, found in zip(TURNS[1:], every, strict=True):
        best_s = min(estimate_s([TWO_STEPS], x, 12, BOOK, np.zeros(2)) for x in found)
        assert best_s == pytest.approx(12 * turns / (turns - 1), rel=0.02)


@pytest.mark.parametrize(("ends", "grown"), [(math.inf, True), (0.0, False)])
def test_after_the_end_nothing_grows(ends, grown):
    garden, asked = barren(TWO_STEPS), []
    garden.grown = lambda *_: asked.append("for trees") or []
    every = list(mixtures(garden, 1, BOOK, np.zeros(2), 1.0, ends))
    assert every and bool(asked) == grown


@pytest.mark.sweep("searches")
def test_trees_that_grow_fill_the_turns(monkeypatch):
    """Without NVLink 0-3 the packed trees leave links idle in the first turns and the last ones."""
    topology = preset("dgx1").without(("gpu0", "gpu3"))
    links = Links(topology, 8)
    packing, nbytes, turns = pack(links), 1 << 30, 8

    def time_s():
        garden = Garden(list(seeds(topology, 8, packing)), links)
        idle_s = np.zeros(len(links.names))
        problem = _InTurns(garden, turns, nbytes, idle_s, nbytes * packing.bound_s)
        problem.begin(range(len(garden.shapes)))
        return problem.solved()[0]

    grown_s = time_s()
    assert nbytes * packing.bound_s * (1 - 1e-6) < grown_s < 1.01 * nbytes * packing.bound_s
    monkeypatch.setattr("fastreduce.synthesis.mixing.GROWTHS", 0)
    assert time_s() > 1.15 * grown_s


def test_copies_are_as_many_as_wanted_in_proportion():
    begun = [Begun(0, np.array([[1.0, 0.0]]), 0.6), Begun(0, np.array([[0.0, 1.0]]), 0.4)]
    assert copies_of(begun, [1, 1], np.zeros(2), 5).tolist() == [3, 2]
    # With three shards a copy has three times as much.
    assert copies_of(begun, [3, 1], np.zeros(2), 3).tolist() == [1, 2]
    assert all(copies_of(begun, [1, 1], np.zeros(2), n).sum() == n for n in range(1, 50))


def test_no_slow_link_has_one_copy_more_than_its_share():
    # Link 1 is slow: one copy more on it makes the turn longer than three more on link 0.
    begun = [Begun(0, np.array([[1.0, 0.0]]), 0.94), Begun(0, np.array([[0.0, 12.0]]), 0.06)]
    assert copies_of(begun, [1, 1], np.zeros(2), 10).tolist() == [10, 0]  # rounded it were 9 and 1
