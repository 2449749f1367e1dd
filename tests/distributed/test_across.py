"""Several machines, played by the processes of one: all calls, with the words of one machine."""

from functools import cache

import backend_scenarios
import error_scenarios
import failure_scenarios as failures
import gloo_scenarios
import pytest
import torch
from backend_calls import CALLS
from failure_scenarios import LARGE
from processes import in_a_group
from sweeps import one_in
from test_backend_values import check

# Processes and machines.
SHAPES = [(4, 2), (6, 3), (3, 3)]


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    @cache
    def run(size, machines):
        folder = tmp_path_factory.mktemp(f"ranks{size}")
        of = (size, str(folder))
        in_a_group(
            backend_scenarios.cases_across, of, size, folder, None, "fastreduce", 60, 300, machines
        )
        return [torch.load(folder / f"found-{rank}", weights_only=False) for rank in range(size)]

    return run


@pytest.mark.sweep("machines")
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", CALLS)
def test_values(found, shape, name):
    check(found(*shape), name)


@pytest.mark.parametrize("shape", one_in(3, [(shape,) for shape in SHAPES], "machines"), ids=str)
@pytest.mark.parametrize(
    "scenario", one_in(2, [error_scenarios.run, gloo_scenarios.run], "machines")
)
def test_calls_that_differ_and_those_of_gloo(tmp_path, scenario, shape):
    size, machines = shape
    in_a_group(scenario, (size,), size, tmp_path, None, "fastreduce", 60, 300, machines)


def killed(folder, scenario, *args, shape, victim, timeout_s=300):
    size, machines = shape
    in_a_group(
        scenario, (size, *args), size, folder, victim, "fastreduce", timeout_s, 120, machines
    )


@pytest.mark.parametrize(
    ("when", "elems"),
    one_in(3, [("in", LARGE), ("before", 5), ("after", 5), ("before", LARGE)], "kills"),
)
def test_one_is_killed(tmp_path, when, elems):
    killed(tmp_path, failures.one_is_killed, when, elems, 2, shape=(4, 2), victim=3)


@pytest.mark.parametrize(
    ("giver", "how"),
    one_in(2, [(0, "raises"), (2, "aborts"), (1, "raises"), (3, "aborts")], "kills"),
)
def test_one_gives_up(tmp_path, giver, how):
    of = (4, giver, how)
    in_a_group(failures.one_gives_up, of, 4, tmp_path, None, "fastreduce", 300, 120, 2)


@pytest.mark.sweep("kills")
@pytest.mark.parametrize("how", ["raises", "aborts"])
def test_ranks_that_come_long_after_one_has_given_up_hear_why(tmp_path, how):
    of = (4, 2, how, 5)
    in_a_group(failures.one_gives_up, of, 4, tmp_path, None, "fastreduce", 300, 120, 2)


def test_one_is_killed_while_another_machine_is_late(tmp_path):
    killed(tmp_path, failures.one_is_killed_while_another_machine_is_late, shape=(4, 2), victim=3)


@pytest.mark.sweep("kills")
@pytest.mark.parametrize("name", gloo_scenarios.CALLS)
def test_one_is_killed_in_calls_of_gloo(tmp_path, name):
    killed(tmp_path, gloo_scenarios.one_is_killed, name, "in", 2, shape=(4, 2), victim=3)


@pytest.mark.sweep("kills")
@pytest.mark.parametrize("seed", range(10))
def test_one_is_killed_at_any_time(tmp_path, seed):
    victim = failures.random.Random(seed).randrange(4)
    killed(tmp_path, failures.one_is_killed_at_any_time, seed, 2, shape=(4, 2), victim=victim)
