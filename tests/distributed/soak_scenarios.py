"""Collectives of random kind, dtype, size and layout, on random groups, for long."""

import os
import random
import threading
from itertools import combinations
from pathlib import Path

import torch.distributed as dist
from backend_cases import sampled
from backend_scenarios import check

CASES_OF_A_GROUP = 300


def soak(rank, size, count, seed):
    """Groups come and go; what a process holds is the same after any number of them."""
    draw = random.Random(seed)
    members = [list(x) for n in range(2, size + 1) for x in combinations(range(size), n)]
    held = []
    for begin in range(0, count, CASES_OF_A_GROUP):
        ranks = [None, *draw.sample(members, 2)]
        groups = [None if own is None else dist.new_group(own) for own in ranks]
        for case in sampled(draw.random(), min(CASES_OF_A_GROUP, count - begin)):
            group, own = draw.choice(list(zip(groups, ranks, strict=True)))
            if own is None or rank in own:
                check(case, size if own is None else len(own), group)
        for group, own in zip(groups, ranks, strict=True):
            if own is not None and rank in own:
                dist.destroy_process_group(group)
        dist.barrier()
        held.append(holds())
    usual = held[len(held) // 2]  # by then all that is kept on purpose is there
    assert held[-1]["descriptors"] <= usual["descriptors"] + 8, held
    assert held[-1]["threads"] <= usual["threads"] + 2, held
    assert held[-1]["memory_bytes"] <= usual["memory_bytes"] + (64 << 20), held
    assert not [x for x in os.listdir("/dev/shm") if "fastreduce" in x]


def holds():
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return {
        "descriptors": len(os.listdir("/proc/self/fd")),
        "threads": len(os.listdir("/proc/self/task")),
        "of Python": threading.active_count(),
        "memory_bytes": pages * os.sysconf("SC_PAGESIZE"),
    }
