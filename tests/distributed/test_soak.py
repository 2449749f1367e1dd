"""For long, by hand: FASTREDUCE_SOAK=100000 pytest --sweep tests/distributed/test_soak.py -n 0"""

import os

import pytest
import soak_scenarios
from processes import in_a_group

COUNT = int(os.environ.get("FASTREDUCE_SOAK", "2400"))


@pytest.mark.sweep("processes")
def test_nothing_is_left_behind(tmp_path):
    seed = int.from_bytes(os.urandom(4), "little") if "FASTREDUCE_SOAK" in os.environ else 0
    print(f"seed {seed}")
    within_s = 60 + COUNT / 20
    settings = {"backend": "fastreduce", "timeout_s": 30, "within_s": within_s}
    in_a_group(soak_scenarios.soak, (3, COUNT, seed), 3, tmp_path, **settings)
