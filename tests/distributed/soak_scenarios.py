"""Collectives of random kind, dtype, size and layout, on random groups, and what groups leave."""

import os
import random
import time
from itertools import combinations
from pathlib import Path

import torch
import torch.distributed as dist
from backend_cases import sampled, values
from backend_scenarios import check

CASES_OF_A_GROUP = 300

# How much more a process may hold at the end than in the middle, when what is kept on purpose is
# there: the heap's memory and what peers have mapped of it, by 4 MiB and more, and torch's own.
MORE = {"descriptors": 8, "threads": 2, "mappings": 16, "mapped_bytes": 64 << 20, "bytes": 64 << 20}


def soak(rank, size, count, seed, folder):
    """Groups come and go; what a process holds is the same after any number of them."""
    draw = random.Random(seed)
    # Of each rank, one call in some thousands is late.
    os.environ["FASTREDUCE_CHAOS"] = f"{seed}:delay=0.0003"
    members = [list(x) for n in range(2, size + 1) for x in combinations(range(size), n)]
    held = []
    for begin in range(0, count, CASES_OF_A_GROUP):
        ranks = [None, *draw.sample(members, min(2, len(members)))]
        groups = [None if own is None else dist.new_group(own) for own in ranks]
        for case in sampled(draw.random(), min(CASES_OF_A_GROUP, count - begin)):
            group, own = draw.choice(list(zip(groups, ranks, strict=True)))
            if own is None or rank in own:
                check(case, size if own is None else len(own), group)
        for group, own in zip(groups, ranks, strict=True):
            if own is not None and rank in own:
                dist.destroy_process_group(group)
        del group, groups
        values.cache_clear()  # the cases' own
        dist.barrier()
        held.append(holds())
        torch.save(held, f"{folder}/held-{rank}")
    assert not leaks(held), held
    assert not [x for x in os.listdir("/dev/shm") if "fastreduce" in x]


def nothing_is_left(rank, size):
    """Of 50 groups no file descriptor, no thread, and no memory that others can see."""

    def one():
        group = dist.new_group()
        for asynchronous in (False, True):
            work = dist.all_reduce(torch.ones(9_000), group=group, async_op=asynchronous)
            if asynchronous:
                work.wait()
        dist.destroy_process_group(group)

    def look():
        time.sleep(0.01)
        return holds()

    def least():
        """Of 30 looks: Linux still lists a thread for a moment after it was joined."""
        looks = [look() for _ in range(30)]
        return {x: min(seen[x] for seen in looks) for x in ("descriptors", "threads", "mappings")}

    for _ in range(3):
        one()
    before = least()
    for _ in range(50):
        one()
    after = least()  # less, too, where Gloo closes a socket of its own late
    assert all(after[name] <= before[name] for name in before), (before, after)
    assert "/dev/shm/" not in Path("/proc/self/maps").read_text()


def holds():
    ours = [x for x in Path("/proc/self/maps").read_text().splitlines() if "memfd:fastreduce" in x]
    spans = [[int(end, 16) for end in x.split()[0].split("-")] for x in ours]
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return {
        "descriptors": len(os.listdir("/proc/self/fd")),
        "threads": len(os.listdir("/proc/self/task")),
        "mappings": len(ours),
        "mapped_bytes": sum(end - begin for begin, end in spans),
        "bytes": pages * os.sysconf("SC_PAGESIZE"),
    }


def leaks(held):
    """What there is too much of at the end."""
    usual, last = held[len(held) // 2], held[-1]
    return [name for name, more in MORE.items() if last[name] > usual[name] + more]
