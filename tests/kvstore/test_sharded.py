"""`KVStore("dist_sync")` among processes: tests/kvstore/scenarios.py says what each rank does."""

from functools import cache

import pytest
import scenarios
import torch
from sweeps import one_in

SIZES = one_in(4, [2, 1, 3, 4], "cases")


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """By scenario and rank what failed, for groups of so many processes."""

    @cache
    def run(size):
        folder = tmp_path_factory.mktemp(f"ranks{size}")
        torch.multiprocessing.spawn(scenarios.run, (size, str(folder)), nprocs=size)
        return [torch.load(folder / str(rank)) for rank in range(size)]

    return run


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", [x.__name__ for x in scenarios.SCENARIOS])
def test_each_rank(found, size, name):
    for rank, failed in enumerate(found(size)):
        assert not failed[name], f"rank {rank}: {failed[name]}"


@pytest.mark.parametrize("size", one_in(3, [2, 3, 4], "cases"))
@pytest.mark.parametrize("name", [x.__name__ for x in scenarios.OF_SEVERAL])
def test_each_rank_of_several(found, size, name):
    for rank, failed in enumerate(found(size)):
        assert not failed[name], f"rank {rank}: {failed[name]}"


def test_control_what_fails_on_one_rank_is_seen(found):
    assert [bool(failed["control"]) for failed in found(2)] == [False, True]
