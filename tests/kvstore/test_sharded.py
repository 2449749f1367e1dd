"""A KVStore among processes: tests/kvstore/scenarios.py says what each rank does."""

from functools import cache

import pytest
import scenarios
import torch
from processes import in_a_group
from sweeps import one_in

# Three first: a sum of two has the same bits in either order.
SIZES = one_in(4, [3, 1, 2, 4], "cases")
# What is asynchronous has the same bits where nobody may be ahead.
SETTINGS = {"dist_sync": {"kind": "dist_sync"}, "0 ahead": {"kind": "dist_async", "staleness": 0}}


def names(*scenarios):
    return pytest.mark.parametrize("name", [x.__name__ for x in scenarios])


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """By scenario and rank what failed, for groups of so many processes, and stores like that."""

    @cache
    def run(size, store):
        folder = tmp_path_factory.mktemp(f"ranks{size}")
        in_a_group(scenarios.run, (size, str(folder), SETTINGS[store]), size, folder)
        return [torch.load(folder / f"found-{rank}") for rank in range(size)]

    return run


def check(found, name):
    for rank, failed in enumerate(found):
        assert not failed[name], f"rank {rank}: {failed[name]}"


@pytest.mark.parametrize("store", SETTINGS)
@pytest.mark.parametrize("size", SIZES)
@names(*scenarios.SCENARIOS)
def test_each_rank(found, size, store, name):
    check(found(size, store), name)


@pytest.mark.parametrize("size", SIZES)
@names(*scenarios.REFUSED)
def test_what_is_wrong_on_one_rank_is_raised_on_all(found, size, name):
    check(found(size, "dist_sync"), name)


@pytest.mark.parametrize("size", one_in(3, [3, 2, 4], "cases"))
@names(*scenarios.REFUSED_BY_SEVERAL)
def test_calls_that_differ_are_refused(found, size, name):
    check(found(size, "dist_sync"), name)


def test_control_what_fails_on_one_rank_is_seen(found):
    assert [bool(failed["control"]) for failed in found(3, "dist_sync")] == [False, False, True]
