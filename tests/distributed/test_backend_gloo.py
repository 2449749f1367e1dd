"""Calls that Gloo does: gloo_scenarios.py and gloo_errors.py say what each rank does."""

import gloo_scenarios as scenarios
import pytest
from processes import in_a_group
from sweeps import one_in


@pytest.mark.parametrize("size", one_in(3, [3, 2, 4], "processes"))
def test_calls(tmp_path, size):
    in_a_group(scenarios.run, (size,), size, tmp_path, None, "fastreduce", 20)


@pytest.mark.parametrize(
    ("when", "name"),
    one_in(
        4,
        [(when, name) for when in ("in", "before") for name in reversed(scenarios.CALLS)],
        "kills",
    ),
)
def test_one_is_killed(tmp_path, when, name):
    """In a ring of five, two do not talk to the one that is killed."""
    in_a_group(scenarios.one_is_killed, (5, name, when), 5, tmp_path, 4, "fastreduce", 300)


@pytest.mark.parametrize("machines", [1, 2])
def test_a_group_ends_while_gloo_waits_in_vain(tmp_path, machines):
    of = (2, str(tmp_path))
    scenario = scenarios.one_stops_while_gloo_sends_to_it
    in_a_group(scenario, of, 2, tmp_path, 1, "fastreduce", 300, 120, machines)
