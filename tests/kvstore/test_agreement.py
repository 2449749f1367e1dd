"""What the ranks of a group must agree on, for a store among them.

tests/kvstore/agreement_scenarios.py says what each rank does.
"""

import agreement_scenarios
import pytest
from processes import in_a_group


@pytest.mark.parametrize(
    "name", ["stores_of_groups_and_then_of_all", "settings_differ", "optimizers_differ"]
)
def test_what_differs_is_named(tmp_path, name):
    in_a_group(getattr(agreement_scenarios, name), (), 2, tmp_path)


def test_what_does_not_differ(tmp_path):
    in_a_group(agreement_scenarios.an_order_of_settings_is_no_difference, (), 2, tmp_path)


@pytest.mark.parametrize("kind", ["dist_sync", "dist_async"])
def test_ranks_of_a_group_are_named(tmp_path, kind):
    in_a_group(agreement_scenarios.a_group_of_the_last_two, (kind,), 3, tmp_path)


@pytest.mark.parametrize("kind", ["dist_sync", "dist_async"])
def test_what_one_rank_cannot_load_is_raised_on_all(tmp_path, kind):
    run = agreement_scenarios.a_checkpoint_that_one_rank_cannot_load
    in_a_group(run, (str(tmp_path), kind), 2, tmp_path)


@pytest.mark.parametrize("name", ["rpc_of_the_program_itself", "rpc_on_one_rank_only"])
def test_a_program_that_uses_rpc(tmp_path, name):
    in_a_group(getattr(agreement_scenarios, name), (str(tmp_path),), 2, tmp_path)
