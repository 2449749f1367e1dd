"""torch.distributed's backend "fastreduce" with tensors of all ranks on one GPU.

process_scenarios.py says what each rank does.
"""

from functools import cache

import process_scenarios as scenarios
import pytest
import torch
from backend_calls import ALIKE, CALLS
from processes import in_a_group

PLACES = ["cpu", pytest.param("cuda:0", marks=pytest.mark.gpu)]


@pytest.fixture
def run(tmp_path, place):
    def run(scenario, size, *args, killed=None, timeout_s=60):
        own = (size, place, *args)
        in_a_group(scenario, own, size, tmp_path, killed, "fastreduce", timeout_s, 120)

    return run


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """By rank: what failed, and the bits that shall be alike on all ranks."""

    @cache
    def run(size, place):
        folder = tmp_path_factory.mktemp(f"ranks{size}")
        own = (size, place, str(folder))
        in_a_group(scenarios.values, own, size, folder, None, "fastreduce", 60, 300)
        return [torch.load(folder / f"found-{rank}", weights_only=False) for rank in range(size)]

    return run


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("name", CALLS)
def test_values(found, place, size, name):
    own = []
    for rank, (failed, bits) in enumerate(found(size, place)):
        wrong = [f"{case}: {why}" for case, why in failed.items() if case.call == name]
        assert not wrong, f"rank {rank}, {len(wrong)} cases, the first: {wrong[0]}"
        own.append({case: x for case, x in bits.items() if case.call == name})
    if name in ALIKE:
        assert own[0] and all(x == own[0] for x in own), "ranks have different bits"


@pytest.mark.gpu
@pytest.mark.parametrize("place", PLACES[1:])
def test_large_values(run):
    run(scenarios.large_values, 2)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize(
    "scenario",
    [
        *(scenarios.in_stream_order, scenarios.many_at_once, scenarios.calls_that_differ),
        scenarios.beside_a_capture,
        *(scenarios.ddp, scenarios.fsdp, scenarios.expandable_segments),
        *(scenarios.through_the_cpu, scenarios.groups_come_and_go, scenarios.kernels_that_wait),
    ],
)
def test_it(run, size, scenario):
    run(scenario, size)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(("size", "elems"), [(2, 5), (4, 3_000_000)])
def test_one_is_killed(run, size, elems):
    run(scenarios.one_is_killed, size, elems, killed=size - 1, timeout_s=300)


@pytest.mark.parametrize("place", PLACES)
def test_one_is_stopped(run):
    run(scenarios.one_is_stopped, 2, killed=1, timeout_s=6)
