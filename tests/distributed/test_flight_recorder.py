"""What torch's flight recorder shows of calls that have ended, and of one that has not (torch 2.15
and later)."""

import json
import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from failure_scenarios import raised
from processes import in_a_group
from torch._C import _distributed_c10d as c10d

pytestmark = pytest.mark.skipif(
    not hasattr(c10d, "_reset_fr_trace"), reason="torch's recorder knows its own backends only"
)


def recorded():
    """By call: in what state it is, and how long it took."""
    dump = json.loads(c10d._dump_fr_trace_json(backend="fastreduce"))
    return [
        (entry["profiling_name"].split(":")[-1], entry["state"], entry.get("duration_ms"))
        for entry in dump["entries"]
    ]


def calls(rank, size):
    for asynchronous in (False, True):
        work = dist.all_reduce(torch.ones(3), async_op=asynchronous)
        if work:
            work.wait()
    dist.barrier()
    if rank == 0:
        dist.send(torch.ones(3), 1)
    else:
        dist.recv(torch.ones(3), 0)
    found = recorded()
    assert len(found) == 4
    assert all(state == "completed" and ms > 0 for _, state, ms in found), found

    group = dist.new_group(timeout=timedelta(milliseconds=150))
    if rank == 0:
        words = raised(lambda: dist.all_reduce(torch.ones(3), group=group))
        assert "timeout" in words
        *before, (_, state, ms) = recorded()
        assert (len(before), state, ms) == (4, "scheduled", None)
    else:
        time.sleep(1)


def test_what_is_recorded(tmp_path):
    in_a_group(calls, (2,), 2, tmp_path, None, "fastreduce", 20)
