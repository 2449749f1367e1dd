"""Does the backend hold for long, and what happens when one rank is in trouble?

    python tests/distributed/soak.py --calls 100000 --chaos 200 --processes 4 --seed 1

first makes so many collectives of random kind, dtype, operation, size and layout on random groups
of the processes. Every rank checks every value, and at the end that nothing has leaked: memory,
descriptors, threads, shared memory. Then, so many times, one rank of a new set of processes is
killed, stopped, delayed, or leaves, at a random point of such calls: every other one must raise an
error that names it, in time, and no call may return a wrong value.

The first thing that is wrong ends it, with the arguments that repeat it. The points in time are not
the same when it is repeated, where a signal comes from a clock.
"""

import argparse
import random
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

import torch

sys.path += [str(Path(__file__).parents[n] / name) for n, name in ((1, ""), (2, "benchmarks"))]

import chaos_scenarios
import soak_scenarios
from chaos_scenarios import TROUBLES
from processes import in_a_group

# Beyond what the group's timeout allows, if one is stopped: how long a rank may take to notice.
# That a process has ended is looked at every 100 ms; the rest is for a machine with other work.
NOTICED_S = 10


def soak(calls, processes, seed):
    with tempfile.TemporaryDirectory() as folder:
        within_s = 60 + calls / 5
        own = (processes, calls, seed, folder)
        settings = {"backend": "fastreduce", "timeout_s": 120, "within_s": within_s}
        in_a_group(soak_scenarios.soak, own, processes, Path(folder), **settings)
        return [torch.load(f"{folder}/held-{rank}") for rank in range(processes)]


def trouble(size, seed, victim, name, meets=None):
    """How long the others took to notice what ``meets`` the victim; default: that of the name."""
    meets = meets or TROUBLES[name]
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "signs").write_bytes(bytes(8 * size))  # the last ones of each rank, as float64
        own = (size, seed, victim, name, meets, folder)
        killed = victim if meets.ends else None
        in_a_group(
            *(chaos_scenarios.one_has_trouble, own, size, Path(folder), killed, "fastreduce"),
            **{"timeout_s": 60, "within_s": 120},
        )
        found = [torch.load(path) for path in Path(folder).glob("late-*")]
    assert len(found) == (size - 1 if meets.words else 0), found
    most_s = NOTICED_S + (meets.timeout_s if name.startswith("stop") else 0)
    assert not found or max(found) < most_s, f"noticed after {max(found):.1f} s"
    return found


def chaos(times, processes, seed):
    """By trouble, seconds until the last rank knew; prints what could repeat a failure."""
    draw, found = random.Random(seed), defaultdict(list)
    for number in range(times):
        name = list(TROUBLES)[number % len(TROUBLES)]
        size = draw.randint(2, processes)
        own = (size, draw.getrandbits(32), draw.randrange(size), name)
        try:
            found[name].append(max(trouble(*own), default=None))
        except BaseException:
            print(f"time {number}: trouble{own} failed", flush=True)
            raise
    return found


def main(arguments=None):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--calls", type=int, default=100_000, help="collectives (100000)")
    parser.add_argument("--chaos", type=int, default=200, help="times of trouble (200)")
    parser.add_argument("--processes", type=int, default=4, help="at most (4)")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(arguments)
    begin = time.monotonic()
    if args.calls:
        held = soak(args.calls, args.processes, args.seed)
        print(f"{args.calls} calls, all values right, in {time.monotonic() - begin:.0f} s")
        for rank, states in enumerate(held):
            print(f"rank {rank} held in the middle {states[len(states) // 2]}, then {states[-1]}")
    for name, times in chaos(args.chaos, args.processes, args.seed).items():
        known = [x for x in times if x is not None]
        line = f"{len(times)} times {name}: no wrong value, no hang"
        if known:
            line += f", known after {statistics.median(known):.2f} s, at most {max(known):.2f}"
        print(line)


if __name__ == "__main__":
    main()
