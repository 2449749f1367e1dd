"""How much of the data starts in which turn: the shares that make the turns short."""

import numpy as np
import pytest

from fastreduce.simulation.costs import BOOK, EVENTS
from fastreduce.synthesis.estimate import Shape, estimate_s
from fastreduce.synthesis.mixing import TURNS, _in_turns, mixtures, rounded

# The first step keeps link 0 busy for a second a byte, the second step link 1.
TWO_STEPS = Shape(1, np.eye(2))
# In one step, but its link is not as fast.
ONE_STEP = Shape(1, np.array([[0.0, 0.0, 3.0]]))


@pytest.mark.parametrize("turns", [2, 3, 4, 9])
@pytest.mark.parametrize("idle_s", [0.0, 0.25])
def test_copies_follow_each_other(turns, idle_s):
    time_s, shares = _in_turns([TWO_STEPS], [0], turns, 1, np.full(2, idle_s), 1.0)
    # Each of turns - 1 copies keeps both links busy as long.
    assert time_s == pytest.approx(turns / (turns - 1) + turns * idle_s)
    assert shares == pytest.approx({(0, turn): 1 / (turns - 1) for turn in range(turns - 1)})


def test_another_program_takes_what_other_links_can_carry():
    shapes = [Shape(1, np.array([[1.0, 0.0, 0.0]])), ONE_STEP]
    time_s, shares = _in_turns(shapes, [0, 1], 1, 8, np.zeros(3), 1.0)
    assert shares == pytest.approx({(0, 0): 3 / 4, (1, 0): 1 / 4})
    assert time_s == pytest.approx(6)


def test_turns_end_where_no_more_can_pay():
    def tried(costs):
        return len([*mixtures([TWO_STEPS], 1, costs, np.zeros(2), 1.0)])

    assert tried(BOOK) == len(TURNS) - 1  # in one turn there is no time for two steps
    assert tried(EVENTS._replace(launch_s=0.05)) < len(TURNS) - 4


def test_a_mixture_takes_as_long_as_was_reckoned():
    every = mixtures([TWO_STEPS], 12, BOOK, np.zeros(2), 1.0)
    for turns, found in zip(TURNS[1:], every, strict=True):
        best_s = min(estimate_s([TWO_STEPS], x, 12, BOOK, np.zeros(2)) for x in found)
        assert best_s == pytest.approx(12 * turns / (turns - 1), rel=0.02)


def test_proportions_add_up():
    assert rounded([0.6, 0.4], 5) == [3, 2]
    assert sum(rounded([1 / 3] * 3, 100)) == 100
