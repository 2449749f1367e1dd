"""Ranks that are killed, stopped, leave or give up: every other one raises and says who it was.

failure_scenarios.py and late_scenarios.py say what each rank does. Where a rank is killed, the
group's timeout is longer than a test may take.
"""

import failure_scenarios as scenarios
import late_scenarios
import pytest
from processes import in_a_group
from subprocesses import output_of
from sweeps import one_in


def run(folder, scenario, size, *args, killed=None, timeout_s=300):
    in_a_group(scenario, (size, *args), size, folder, killed, "fastreduce", timeout_s)


@pytest.mark.parametrize(
    ("when", "size", "elems"),
    one_in(
        3,
        [
            *[("before", 2, 5), ("before", 4, 5), ("before", 3, scenarios.LARGE)],
            *[("in", 3, scenarios.LARGE), ("in", 2, scenarios.LARGE), ("in", 4, 9_000)],
            *[("after", 2, 5), ("after", 4, 5), ("after", 3, scenarios.LARGE)],
        ],
        "kills",
    ),
)
def test_one_is_killed(tmp_path, when, size, elems):
    run(tmp_path, scenarios.one_is_killed, size, when, elems, killed=size - 1)


@pytest.mark.sweep("kills")
@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("size", [2, 3, 4])
def test_one_is_killed_at_any_time(tmp_path, size, seed):
    victim = scenarios.random.Random(seed).randrange(size)
    run(tmp_path, scenarios.one_is_killed_at_any_time, size, seed, killed=victim)


@pytest.mark.parametrize("size", one_in(2, [3, 2], "kills"))
def test_one_is_stopped(tmp_path, size):
    run(tmp_path, scenarios.one_is_stopped, size, killed=size - 1, timeout_s=2)


@pytest.mark.parametrize(
    "scenario",
    [
        scenarios.one_is_stopped_while_callers_are_known,
        scenarios.one_is_stopped_whose_file_has_a_long_name,
    ],
)
def test_where_the_last_call_was_made(tmp_path, scenario):
    run(tmp_path, scenario, 2, killed=1, timeout_s=2)


@pytest.mark.parametrize("size", one_in(2, [2, 4], "processes"))
def test_the_others_go_on(tmp_path, size):
    run(tmp_path, scenarios.all_alive, size)


@pytest.mark.parametrize("size", one_in(2, [2, 3], "processes"))
def test_one_is_late(tmp_path, size):
    run(tmp_path, late_scenarios.run, size)


def test_python_ends_while_a_call_waits(tmp_path):
    """Long before the group's timeout, though the other rank lives and does not come."""
    script = f"""
        import os
        from datetime import timedelta
        import torch, torch.distributed as dist
        import fastreduce.distributed

        ended, alive = os.pipe()
        rank = 0 if os.fork() else 1
        limit = timedelta(minutes=30)
        store = "file://{tmp_path}/store"
        dist.init_process_group("fastreduce", store, limit, rank=rank, world_size=2)
        dist.barrier()
        if rank == 1:
            os.close(alive)
            os.read(ended, 1)  # until rank 0's process has ended
            os._exit(0)
        dist.all_reduce(torch.ones(3), async_op=True)
        print("ends")
    """
    assert output_of(script) == "ends"
