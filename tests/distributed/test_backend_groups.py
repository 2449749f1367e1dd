"""Several groups at once, and what Gloo does: group_scenarios.py says what each rank does."""

from datetime import timedelta

import group_scenarios as scenarios
import pytest
import torch.distributed as dist
from processes import in_a_group
from sweeps import one_in

from fastreduce.distributed import Options


@pytest.mark.parametrize("size", one_in(3, [3, 2, 4], "processes"))
def test_groups(tmp_path, size):
    in_a_group(scenarios.run, (size,), size, tmp_path, None, "fastreduce", 20)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (Options(shared_bytes=65_535), "shared_bytes: found 65535 for 1 ranks, wanted a whole"),
        (Options(shared_bytes="64MiB"), "shared_bytes: found '64MiB' for 1 ranks, wanted a whole"),
        (Options(shared_bytes=2**63), "wanted a whole number of at least 65536, below 2\\*\\*63"),
        ({"shared_bytes": 1 << 20}, "pg_options: found dict, wanted fastreduce.distributed.Opt"),
    ],
)
def test_options_that_make_no_sense(options, words):
    store = dist.HashStore()
    with pytest.raises((TypeError, ValueError), match=words):
        dist.init_process_group("fastreduce", store=store, rank=0, world_size=1, pg_options=options)
    assert not dist.is_initialized()


@pytest.mark.parametrize(
    ("own", "words"),
    [
        ({"rank": 2}, "rank: found 2, wanted a number below the world_size of 2"),
        ({"timeout": timedelta(0)}, "timeout: found 0:00:00, wanted more than none"),
        ({"timeout": timedelta.max}, "timeout: found -.* days, .*, wanted more than none"),
    ],
    ids=str,
)
def test_numbers_that_make_no_sense(own, words):
    """Torch passes on the longest time as a negative one."""
    given = {"rank": 0, "world_size": 2, "store": dist.HashStore(), **own}
    with pytest.raises(ValueError, match=words):
        dist.init_process_group("fastreduce", **given)
    assert not dist.is_initialized()
