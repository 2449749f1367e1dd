"""Several groups at once, and what Gloo does: group_scenarios.py says what each rank does."""

import group_scenarios as scenarios
import pytest
from processes import in_a_group
from sweeps import one_in


@pytest.mark.parametrize("size", one_in(3, [3, 2, 4], "processes"))
def test_groups(tmp_path, size):
    in_a_group(scenarios.run, (size,), size, tmp_path, None, "fastreduce", 20)
