"""Stores of which a rank ends or hangs, and stores that are closed.

tests/kvstore/ending_scenarios.py says what each rank does.
"""

import ending_scenarios
import pytest
from processes import in_a_group
from sweeps import one_in


@pytest.mark.parametrize("seed", one_in(20, range(20), "kills"))
def test_a_worker_that_is_killed_stops_nobody(tmp_path, seed):
    in_a_group(ending_scenarios.a_worker_is_killed, (seed,), 3, tmp_path, killed=2)


@pytest.mark.parametrize("seed", one_in(20, range(20), "kills"))
def test_a_server_that_is_killed_is_named_with_its_keys(tmp_path, seed):
    in_a_group(ending_scenarios.a_server_is_killed, (seed,), 3, tmp_path, killed=1)


@pytest.mark.sweep("kills")
def test_a_server_that_hangs_is_named(tmp_path):
    in_a_group(ending_scenarios.a_server_is_stopped, (), 2, tmp_path, killed=1)


def test_a_rank_of_dist_sync_that_is_killed_is_an_error_on_the_others(tmp_path):
    in_a_group(ending_scenarios.one_of_all_is_killed, (), 3, tmp_path, killed=1)


def test_a_store_that_is_closed_answers_pings_in_silence(tmp_path):
    in_a_group(ending_scenarios.a_closed_store_is_asked, (str(tmp_path),), 2, tmp_path)


@pytest.mark.parametrize(
    "name",
    one_in(
        2,
        [
            "a_store_that_is_closed",
            "stores_one_after_the_other_leave_nothing_open",
            "where_ranks_met_lasts_until_all_have_left",
            "one_ends_without_taking_leave",
            "calls_go_through_no_shared_memory",
        ],
        "processes",
    ),
)
def test_two_ranks(tmp_path, name):
    in_a_group(getattr(ending_scenarios, name), (), 2, tmp_path)


@pytest.mark.parametrize("place", ending_scenarios.PLACES)
def test_a_rank_that_is_killed_while_a_store_is_made(tmp_path, place):
    in_a_group(ending_scenarios.one_ends_while_a_store_is_made, (place,), 2, tmp_path, killed=1)
