"""What the ranks do of which one is late."""

import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from failure_scenarios import backend, in_turn, raised

import fastreduce.distributed as fd


def timeouts(rank, size):
    """Of one call, of a group, and changed later; other groups go on."""

    def one_call(group):
        options = dist.AllreduceOptions()
        options.timeout = timedelta(milliseconds=150)
        backend(group).allreduce([torch.ones(3)], options).wait()

    def changed(group):
        backend(group).set_timeout(timedelta(milliseconds=150))
        dist.all_reduce(torch.ones(3), group=group)

    def of_a_group(group):
        dist.all_reduce(torch.ones(3), group=group)

    for call in (one_call, changed, of_a_group):
        limit = timedelta(milliseconds=150) if call is of_a_group else None
        group = dist.new_group(timeout=limit)
        dist.barrier()
        if rank == 0:
            words = raised(lambda call=call, group=group: call(group))
            assert " reached its timeout of 150 ms, waiting for rank 1" in words, words
            assert "rank 1 has not arrived, and has made no collective call yet" in words, words
        dist.barrier()
        if rank > 0:  # who comes too late hears of it
            words = raised(lambda group=group: dist.all_reduce(torch.ones(3), group=group))
            assert "rank 0 gave up: " in words and "timeout" in words, words


def centuries_are_as_good_as_no_timeout(rank, size):
    """Clocks count nanoseconds in 64 bits, which end after 292 years."""
    group = dist.new_group(timeout=timedelta(days=300 * 365))
    for asynchronous in (False, True):
        if rank == 0:
            time.sleep(0.1)  # so that the others wait
        x = torch.ones(3)
        work = dist.all_reduce(x, group=group, async_op=asynchronous)
        if work is not None:
            work.wait()
        assert torch.equal(x, torch.full((3,), float(size)))
    options = dist.AllToAllOptions()
    options.timeout = timedelta(days=300 * 365)
    backend(group).alltoall_base(torch.ones(size), torch.ones(size), [], [], options).wait()


def waiting_for_work_has_a_limit(rank, size):
    group = dist.new_group()
    if rank == 0:
        work = dist.all_reduce(torch.ones(3), group=group, async_op=True)
        for limit_ms in (50, 1):  # again
            words = f"all_reduce, call 1 of rank 0's group, has not ended within {limit_ms} ms"
            with pytest.raises(RuntimeError, match=f"wait timed out: fastreduce:{words}"):
                work.wait(timedelta(milliseconds=limit_ms))
    dist.barrier()
    if rank > 0:
        dist.all_reduce(torch.ones(3), group=group)
    else:
        assert work.wait(timedelta(days=300 * 365))
    dist.barrier()


def what_a_late_rank_was_given_serves_nobody_else(rank, size):
    """It may still read and write there. What a call that ended has used serves the next tensor."""
    for elems in (1000, 3_000_000):  # of a segment that tensors share, and of one alone
        group = dist.new_group(timeout=timedelta(milliseconds=150))
        x = fd.empty(elems).fill_(1)
        place = x.data_ptr()
        dist.all_reduce(x)
        del x
        x = fd.empty(elems)
        assert x.data_ptr() == place
        dist.barrier()
        if rank == 0:
            words = raised(lambda x=x, group=group: dist.all_reduce(x[1:], group=group))
            assert " reached its timeout of 150 ms" in words, words
        dist.barrier()
        if rank == 0:
            del x
            again = [fd.empty(elems) for _ in range(3)]
            assert place not in [y.data_ptr() for y in again]


SCENARIOS = [
    *(timeouts, centuries_are_as_good_as_no_timeout, waiting_for_work_has_a_limit),
    what_a_late_rank_was_given_serves_nobody_else,
]


def run(rank, size):
    in_turn(SCENARIOS, rank, size)
