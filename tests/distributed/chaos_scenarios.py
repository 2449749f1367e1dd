"""Something happens to one rank of a group at a random point of random calls: the others say so."""

import os
import random
import re
import signal
import threading
import time
from dataclasses import dataclass
from datetime import timedelta
from itertools import count

import torch
import torch.distributed as dist
from backend_cases import sampled
from backend_scenarios import check
from failure_scenarios import backend, every_later_call_raises

STOPPED_S = 0.4  # and goes on
TIMEOUT_S = 3  # of groups in which one rank is stopped for good
MOST_S = 100


@dataclass(frozen=True)
class Trouble:
    """What happens to the victim, what the others' errors must say of it, and the group's timeout.

    ``words`` is None where nobody may raise. ``ends``: whether the victim's process does not go on.
    """

    words: str | None
    ends: bool = False
    timeout_s: int = 300


ENDED = Trouble(r"the process of rank {} has ended", ends=True)
STOPPED = Trouble(r"(waiting for|which waits for) rank {}\b", ends=True, timeout_s=TIMEOUT_S)
TROUBLES = {
    # by FASTREDUCE_CHAOS, between two calls
    "kill=0.04": ENDED,
    "stop=0.04": STOPPED,
    "fail=0.04": Trouble(r"rank {} was made to fail by FASTREDUCE_CHAOS"),
    "delay=0.04": Trouble(None),
    # at a random time, so mostly in the middle of a call
    "killed": ENDED,
    "stopped": STOPPED,
    "paused": Trouble(None),
    "aborts": Trouble(r"rank {} called abort"),
    "leaves": Trouble(r"rank {} has left the group"),
}


def one_has_trouble(rank, size, seed, victim, name, trouble, folder):
    """Writes how long after the victim's last sign of life this rank knew, to a file."""
    draw = random.Random(seed)
    if "=" in name and rank == victim:
        os.environ["FASTREDUCE_CHAOS"] = f"{seed}:{name}"
    group = dist.new_group(timeout=timedelta(seconds=trouble.timeout_s))
    signs = torch.from_file(f"{folder}/signs", shared=True, size=size, dtype=torch.float64)
    signs[rank] = time.monotonic()
    dist.barrier()
    after_s, calls = draw.random() * 0.3, 100 if trouble.words is None else 10**6
    timer = threading.Timer(after_s, meet_with, (name, group, signs))
    if "=" not in name and rank == victim:
        timer.start()
    try:
        run_calls(draw, size, group, signs, rank, calls)
    except (dist.DistBackendError, RuntimeError, ValueError) as error:
        late_s = time.monotonic() - signs[victim].item()
        assert trouble.words, str(error)
        if rank != victim:
            assert re.search(trouble.words.format(victim), str(error)), str(error)
            torch.save(late_s, f"{folder}/late-{rank}")
            if name != "leaves":
                every_later_call_raises(group)
    else:
        assert trouble.words is None, "no call has raised"
    if "=" not in name and rank == victim:
        timer.join()
        signs[rank] = time.monotonic()


def run_calls(draw, size, group, signs, rank, calls):
    begin = time.monotonic()
    for number, case in zip(range(calls), cases(draw), strict=False):
        check(case, size, group)
        if time.monotonic() - begin > MOST_S:
            raise AssertionError(f"{number} calls, and none has raised")
        signs[rank] = time.monotonic()


def cases(draw):
    for _ in count():
        yield from sampled(draw.random(), 50)


def meet_with(name, group, signs):
    if name == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if name == "stopped":
        os.kill(os.getpid(), signal.SIGSTOP)
    if name == "paused":
        pid = os.getpid()
        if os.fork() == 0:
            time.sleep(STOPPED_S)
            os.kill(pid, signal.SIGCONT)
            os._exit(0)
        os.kill(pid, signal.SIGSTOP)
    if name == "aborts":
        backend(group).abort()
    if name == "leaves":
        dist.destroy_process_group(group)
