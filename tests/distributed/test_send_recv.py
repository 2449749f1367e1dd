"""Two ranks that pass each other tensors: two files, ..._scenarios.py, say what each rank does."""

import label_scenarios
import passing_scenarios as scenarios
import pytest
from processes import in_a_group
from sweeps import one_in

# Processes and machines.
SHAPES = [(2, 1), (4, 2), (3, 1), (3, 3)]


def run(folder, scenario, shape, *args, killed=None, timeout_s=60):
    size, machines = shape
    in_a_group(
        scenario, (size, *args), size, folder, killed, "fastreduce", timeout_s, 120, machines
    )


@pytest.mark.parametrize("shape", one_in(3, [(shape,) for shape in SHAPES], "processes"), ids=str)
def test_calls(tmp_path, shape):
    run(tmp_path, scenarios.run, shape)


@pytest.mark.sweep("processes")
def test_groups_that_end(tmp_path):
    run(tmp_path, scenarios.groups_that_end, (3, 1))


@pytest.mark.parametrize(
    ("name", "shape"),
    one_in(3, [(name, shape) for shape in SHAPES[:2] for name in scenarios.CALLS], "kills"),
)
def test_one_is_killed(tmp_path, name, shape):
    size, machines = shape
    run(tmp_path, scenarios.one_is_killed, shape, name, machines, killed=size - 1, timeout_s=300)


@pytest.mark.parametrize("size", one_in(3, [2, 4, 3], "processes"))
def test_what_does_not_fit(tmp_path, size):
    run(tmp_path, label_scenarios.run, (size, 1))


@pytest.mark.parametrize("size", one_in(2, [2, 4], "kills"))
def test_one_is_killed_while_any_rank_may_send(tmp_path, size):
    scenario = label_scenarios.killed_while_any_rank_may_send
    run(tmp_path, scenario, (size, 1), killed=size - 1, timeout_s=300)


@pytest.mark.sweep("kills")
def test_one_is_stopped(tmp_path):
    run(tmp_path, scenarios.one_is_stopped, (2, 1), killed=1, timeout_s=2)
