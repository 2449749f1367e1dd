"""Calls that differ between ranks, or are wrong: all ranks raise, write nothing, and go on.

differing_scenarios.py and error_scenarios.py say what each rank does.
"""

import error_scenarios as scenarios
import pytest
from processes import in_a_group
from soak_scenarios import nothing_is_left
from sweeps import one_in


@pytest.mark.parametrize("size", one_in(3, [3, 2, 4], "processes"))
def test_refused(tmp_path, size):
    in_a_group(scenarios.run, (size,), size, tmp_path, None, "fastreduce", 20)


def test_nothing_is_left(tmp_path):
    in_a_group(nothing_is_left, (2,), 2, tmp_path, None, "fastreduce", 20)
