"""What the ranks do of which one is killed, is stopped, leaves or gives up."""

import inspect
import os
import random
import re
import resource
import signal
import threading
import time
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from fastreduce.distributed import empty

LARGE = 2_000_000  # elements, in many slices


def backend(group=None):
    return (group or dist.group.WORLD)._get_backend(torch.device("cpu"))


def raised(call):
    with pytest.raises(dist.DistBackendError) as caught:
        call()
    return str(caught.value)


def in_turn(scenarios, rank, size):
    """Each begins when all ranks have come through the one before."""
    for scenario in scenarios:
        dist.barrier()
        scenario(rank, size)


def every_later_call_raises(group=None):
    words = raised(lambda: dist.all_reduce(torch.ones(2), group=group))
    assert "this group cannot be used any more" in words, words


def named(victim, size, machines):
    """In the middle of a call ranks of another machine may name the victim's machine."""
    its_machine = [f"no answer from machine{victim * machines // size}: "] * (machines > 1)
    return "|".join([f"the process of rank {victim} has ended", *its_machine])


def one_is_killed(rank, size, when, elems, machines=1):
    """Before the call; in it; after it, where the next one finds out."""
    victim = size - 1
    for _ in range(3):
        dist.all_reduce(torch.ones(5))
    if rank == victim:
        if when != "before":
            work = dist.all_reduce(torch.ones(elems), async_op=True)
            if when == "after":
                work.wait()
        os.kill(os.getpid(), signal.SIGKILL)
    if when == "after":
        dist.all_reduce(torch.ones(elems))
    words = raised(lambda: [dist.all_reduce(torch.ones(elems)) for _ in range(2)])
    number = {"before": "call 4", "after": "call 5"}.get(when, "call ")
    assert re.search(named(victim, size, machines), words), words
    assert f"{number}, " in words or when == "in", words
    assert "allreduce (sum) of float32" in words and "on rank" in words, words
    every_later_call_raises()


def memory_of_a_failed_call_is_not_given_again(rank, size):
    """A peer that is still at work might write into it."""
    place = empty(LARGE).data_ptr()
    x = empty(LARGE).fill_(1)
    assert x.data_ptr() == place  # the control
    dist.all_reduce(x)
    if rank == size - 1:
        os.kill(os.getpid(), signal.SIGKILL)
    raised(partial(dist.all_reduce, x))
    del x
    again = empty(LARGE)
    assert again.data_ptr() != place
    place = again.data_ptr()
    del again
    assert empty(LARGE).data_ptr() == place


def one_is_killed_at_any_time(rank, size, seed, machines=1):
    """The values of all calls that return are right."""
    choice = random.Random(seed)
    victim, after_s = choice.randrange(size), choice.random() / 10
    elems = [choice.choice([1, 100, 9_000, 300_000]) for _ in range(10_000)]
    dist.barrier()
    if rank == victim:
        threading.Timer(after_s, os.kill, (os.getpid(), signal.SIGKILL)).start()
    with pytest.raises(dist.DistBackendError, match=named(victim, size, machines)):
        for n in elems:
            x = torch.full((n,), rank + 1.0)
            dist.all_reduce(x)
            assert torch.equal(x, torch.full((n,), size * (size + 1) / 2))
    assert rank != victim


def one_is_stopped(rank, size):
    """The survivors' group has a timeout of two seconds."""
    victim = size - 1
    dist.broadcast(torch.ones(7), 0)
    if rank == victim:
        os.kill(os.getpid(), signal.SIGSTOP)
    words = raised(lambda: dist.all_reduce(torch.ones(5)))
    assert " reached its timeout of 2000 ms, " in words, words
    assert f"waiting for rank {victim}: " in words, words
    assert "rank 0 has arrived" in words, words
    last = "its last collective call was 1, broadcast of float32 [7], root 0"
    assert f"rank {victim} has not arrived: {last}" in words, words
    every_later_call_raises()


def one_is_stopped_while_callers_are_known(rank, size):
    """As where torch's flight recorder runs."""
    os.environ["TORCH_FR_BUFFER_SIZE"] = "10"
    here = inspect.currentframe()
    dist.broadcast(torch.ones(7), 0)
    called_at = here.f_lineno - 1
    if rank == size - 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    words = raised(lambda: dist.all_reduce(torch.ones(5)))
    last = "its last collective call was 1, broadcast of float32 [7], root 0"
    assert f"{last}, at failure_scenarios.py:{called_at}" in words, words


def one_is_stopped_whose_file_has_a_long_name(rank, size):
    """Of characters of three bytes: what is told of it ends in the middle of none."""
    os.environ["TORCH_FR_BUFFER_SIZE"] = "10"
    of_file, name = {"dist": dist}, "\u4e00" * 80 + ".py"
    source = "def all_reduce(x):\n    dist.all_reduce(x)\n"
    exec(compile(source, name, "exec"), of_file)
    of_file["all_reduce"](torch.ones(7))
    if rank == size - 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    words = raised(lambda: dist.all_reduce(torch.ones(5)))
    assert words.endswith(", at " + "\u4e00" * 31), words
    every_later_call_raises()


def one_has_left(rank, size):
    group = dist.new_group()
    dist.all_reduce(torch.ones(5), group=group)
    if rank == 1:
        return dist.destroy_process_group(group)
    words = raised(lambda: dist.all_reduce(torch.ones(5), group=group))
    assert "call 2, allreduce (sum) of float32 [5], on rank " in words, words
    assert "rank 1 has left the group" in words, words
    assert "rank 1 has not arrived: its last collective call was 1, allreduce" in words, words


def everyone_may_leave_once_it_is_done(rank, size):
    """The last call returns on the slowest rank too."""
    for n in (4, LARGE):
        group = dist.new_group()
        x = torch.ones(n)
        if rank == 0:
            time.sleep(0.2)
        dist.all_reduce(x, group=group)
        dist.destroy_process_group(group)
        assert torch.equal(x, torch.full((n,), float(size)))


def aborted_by_another_thread(rank, size):
    group = dist.new_group()
    dist.barrier()
    if rank == 0:
        thread = threading.Timer(0.1, backend(group).abort)
        thread.start()
        words = raised(lambda: dist.all_reduce(torch.ones(3), group=group))
        thread.join()
        assert "was aborted" in words or "called abort" in words, words
    dist.barrier()
    if rank > 0:
        words = raised(lambda: dist.all_reduce(torch.ones(3), group=group))
        assert "rank 0 gave up: " in words and "abort" in words, words


def all_reduce_without_memory_for_a_copy(group):
    x = torch.ones(1 << 25)[::2]
    taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    limits = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (taken + (8 << 20), limits[1]))
    try:
        dist.all_reduce(x, group=group)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)


def one_raises_before_the_others_hear_of_the_call(rank, size):
    """Its next call is not taken for this one."""
    group = dist.new_group()
    dist.all_reduce(torch.ones(3), group=group)
    if rank == 0:
        with pytest.raises(RuntimeError, match="memory"):
            all_reduce_without_memory_for_a_copy(group)
        every_later_call_raises(group)
    else:
        words = raised(lambda: dist.all_reduce(torch.ones(3), group=group))
        assert "call 2, allreduce (sum) of float32 [3], on rank " in words, words
        assert "rank 0 gave up: rank 0 raised: " in words and "memory" in words, words


def one_gives_up(rank, size, giver, how, late_s=0):
    """The ranks of other machines hear of it before the timeout, and why."""
    group = dist.new_group()
    dist.all_reduce(torch.ones(3), group=group)
    if rank == giver:
        time.sleep(0.2)  # the others wait
        if how == "aborts":
            return backend(group).abort()
        with pytest.raises(RuntimeError, match="memory"):
            all_reduce_without_memory_for_a_copy(group)
    else:
        time.sleep(late_s)
        words = raised(lambda: dist.all_reduce(torch.ones(3), group=group))
        assert f"rank {giver} called abort" in words or f"rank {giver} raised: " in words, words
    every_later_call_raises(group)


def one_is_killed_while_another_machine_is_late(rank, size):
    """Ranks of its own machine say why, and not that they themselves gave up."""
    victim = size - 1
    dist.all_reduce(torch.ones(3))
    if rank == victim:
        os.kill(os.getpid(), signal.SIGKILL)
    if rank < size // 2:
        time.sleep(1)
    words = raised(lambda: dist.all_reduce(torch.ones(3)))
    why = f"the process of rank {victim} has ended"
    call = f"call 2, allreduce (sum) of float32 [3], on rank {rank}: "
    assert why in words and (rank < size // 2 or words == call + why), words


def a_group_ends_in_a_callback(rank, size):
    """Of one of its own calls, in the thread that would serve the next one."""
    groups, ended = [dist.new_group()], threading.Event()
    if rank == 1:
        time.sleep(0.2)  # the others' calls are not done when they return
    work = dist.all_reduce(torch.ones(3), group=groups[0], async_op=True)

    def end(_):
        dist.destroy_process_group(groups.pop())
        ended.set()

    work.get_future().then(end)
    assert ended.wait(20)


def a_callback_waits_for_a_call_behind_it(rank, size):
    """In the thread that would serve it, which has it in its queue already."""
    if rank == 1:
        time.sleep(0.2)  # the others' calls are not done when they return
    x, behind = torch.ones(3), []
    first = dist.all_reduce(x, async_op=True)
    if rank != 1:
        waits = first.get_future().then(lambda _: behind.pop().wait())
    works = [dist.all_reduce(torch.full((3,), n), async_op=True) for n in (2.0, 3.0)]
    behind.append(works[-1])
    if rank != 1:
        waits.wait()
    for work, n in zip((first, *works), (1, 2, 3), strict=True):
        work.wait()
        assert work.result()[0].eq(n * size).all()


def a_group_ends_while_a_call_runs(rank, size):
    """In another thread: the call is finished before the others hear that this rank has left, also
    where they often wait for this rank in it."""
    group = dist.new_group()
    x = torch.ones(LARGE)
    if rank == 0:
        end = threading.Timer(0.1, dist.destroy_process_group, (group,))
        end.start()
    else:
        time.sleep(0.3)
    dist.all_reduce(x, group=group)
    assert torch.equal(x, torch.full((LARGE,), float(size)))
    if rank == 0:
        end.join()


ALIVE = [
    one_raises_before_the_others_hear_of_the_call,
    *(a_group_ends_in_a_callback, a_callback_waits_for_a_call_behind_it),
    a_group_ends_while_a_call_runs,
    *(one_has_left, everyone_may_leave_once_it_is_done, aborted_by_another_thread),
]


def all_alive(rank, size):
    in_turn(ALIVE, rank, size)
