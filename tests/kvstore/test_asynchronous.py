"""`KVStore("dist_async")` among processes that go at their own speed.

tests/kvstore/async_scenarios.py says what each rank does.
"""

import async_scenarios
import pytest
from processes import in_a_group
from sweeps import one_in


@pytest.mark.parametrize(
    ("count", "staleness"), one_in(4, [(2, 2), (2, 0), (3, 1), (4, 3), (3, 0)], "cases")
)
def test_nobody_is_further_ahead(tmp_path, count, staleness):
    run = async_scenarios.nobody_is_further_ahead
    in_a_group(run, (count, staleness), count, tmp_path)


@pytest.mark.parametrize("name", ["without_a_limit", "one_is_late"])
def test_one_goes_ahead(tmp_path, name):
    in_a_group(getattr(async_scenarios, name), (str(tmp_path),), 2, tmp_path)


@pytest.mark.parametrize("staleness", one_in(3, [0, 1, None], "cases"))
def test_who_has_left_is_not_waited_for(tmp_path, staleness):
    in_a_group(async_scenarios.one_has_less_to_do, (staleness,), 2, tmp_path)


@pytest.mark.parametrize("staleness", one_in(3, [1, 0, None], "cases"))
def test_an_updater_that_raises(tmp_path, staleness):
    in_a_group(async_scenarios.an_updater_raises, (staleness,), 2, tmp_path)


@pytest.mark.parametrize("staleness", one_in(2, [0, None], "cases"))
def test_a_server_that_fails(tmp_path, staleness):
    in_a_group(async_scenarios.a_server_fails, (staleness,), 2, tmp_path)


@pytest.mark.parametrize("kind", one_in(2, ["dist_sync", "dist_async"], "cases"))
def test_averages_that_are_rounded_once(tmp_path, kind):
    in_a_group(async_scenarios.half_averages, (kind,), 2, tmp_path)


@pytest.mark.parametrize(
    "name",
    one_in(
        2,
        [
            "an_updater_that_calls_its_own_store",
            "what_is_wrong_on_one_rank_is_its_own",
            "each_push_is_an_update",
        ],
        "processes",
    ),
)
def test_two_ranks(tmp_path, name):
    in_a_group(getattr(async_scenarios, name), (), 2, tmp_path)


def test_control_what_fails_on_one_rank_is_seen(tmp_path):
    with pytest.raises(AssertionError, match="rank 1: Traceback"):
        in_a_group(async_scenarios.control, (), 2, tmp_path)
