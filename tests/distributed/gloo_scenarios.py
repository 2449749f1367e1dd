"""Calls that Gloo does: what they leave, and a rank that is killed in them."""

import os
import re
import signal
import time
from functools import partial

import gloo_errors
import torch
import torch.distributed as dist
from failure_scenarios import LARGE, backend, every_later_call_raises, in_turn, named, raised
from gloo_errors import gather, sparse
from reference import OPS, integer_bits

DTYPES = [*OPS, torch.float8_e8m0fnu]  # the last has no arithmetic


def layouts(values):
    """Contiguous, and with gaps; the second and what lies around it."""
    whole = torch.zeros(2 * len(values), dtype=torch.float32).to(values.dtype)
    whole[::2] = values
    return [(values.clone(), None), (whole[::2], whole[1::2])]


def same(found, wanted):
    assert torch.equal(integer_bits(found), integer_bits(wanted)), (found, wanted)


def every_dtype_and_layout(rank, size):
    for dtype in DTYPES:
        value = [torch.arange(3).add(2 * r).to(torch.float32).to(dtype) for r in range(size)]
        none = torch.zeros(3).to(dtype)
        for (x, _), (out, around) in zip(layouts(value[rank]), layouts(none), strict=True):
            outs = gather(x, size - 1, [*[torch.zeros(3).to(dtype) for _ in value[1:]], out])
            for y, wanted in zip(outs or [], value, strict=False):
                same(y, wanted)
            dist.scatter(out, value if rank == 0 else None)
            same(out, value[rank])
            outs = [torch.zeros(3).to(dtype) for _ in value[1:]]
            outs.insert(rank, out)
            dist.all_to_all(outs, [x] * size)
            for y, wanted in zip(outs, value, strict=True):
                same(y, wanted)
            if around is not None:
                same(around, none)
        parts_of_different_lengths(rank, size, dtype)
        if dtype != torch.complex32:  # torch's own send has no view of it
            passed_on(rank, size, value, dtype)


def parts_of_different_lengths(rank, size, dtype):
    """Each rank sends to each other as many rows as the other's number, of two elements."""
    sent = torch.full((sum(range(size)), 2), float(rank)).to(dtype)
    out = torch.zeros(rank * size, 2).to(dtype)
    dist.all_to_all_single(out, sent, [rank] * size, [*range(size)])
    wanted = torch.arange(float(size)).repeat_interleave(2 * rank).view(-1, 2).to(dtype)
    same(out, wanted)
    outs = [torch.zeros(2, rank).to(dtype).T for _ in range(size)]  # with gaps
    dist.all_to_all(outs, [*sent.split([*range(size)])])
    same(torch.cat(outs), wanted)


def passed_on(rank, size, value, dtype):
    """Round the ring, from a tensor with gaps."""
    got = torch.zeros(3).to(dtype)
    works = [
        dist.isend(layouts(value[rank])[1][0], (rank + 1) % size),
        dist.irecv(got, (rank - 1) % size),
    ]
    for work in works:
        work.wait()
    same(got, value[(rank - 1) % size])


def sums_of_sparse_tensors(rank, size):
    for dtype in (torch.float32, torch.bfloat16, torch.int8, torch.float64):
        wanted = torch.zeros(8, 2, dtype=dtype)
        wanted.view(-1)[:size] = 1
        for dense in (0, 1):
            assert torch.equal(sparse(8, 2, dtype=dtype, dense=dense).to_dense(), wanted)


def run(rank, size):
    scenarios = [
        *(gloo_errors.calls_that_differ, gloo_errors.what_is_wrong),
        *(every_dtype_and_layout, sums_of_sparse_tensors),
    ]
    in_turn(scenarios, rank, size)


def in_parts(elems):
    size = dist.get_world_size()
    return dist.all_to_all_single(
        torch.zeros(elems * size), torch.ones(elems * size), async_op=True
    )


def in_lists(collective, root, elems, group=None):
    x, many = torch.ones(elems), [torch.ones(elems) for _ in range(dist.get_world_size())]
    lists = many if dist.get_rank() == root else None
    return collective(x, lists, root, group=group, async_op=True)


def in_sparse(elems):
    return dist.all_reduce(torch.ones(elems).to_sparse(), async_op=True)


CALLS = {
    "gather": partial(in_lists, dist.gather, 0),
    "scatter": partial(in_lists, dist.scatter, 0),
    "all_to_all": in_parts,
    "sparse all_reduce": in_sparse,
}


def one_stops_while_gloo_sends_to_it(rank, size, folder):
    """The other, which has given up, can let go of the group long before the timeout."""
    group = dist.new_group()
    received = torch.from_file(f"{folder}/received", shared=True, size=40 * LARGE)
    dist.barrier()
    if rank == 1:
        dist.send(torch.tensor(os.getpid()), 0)
        dist.scatter(received, None, 0, group=group)
        os.kill(os.getpid(), signal.SIGSTOP)  # where the other rank was too late to do it
    dist.recv(other := torch.tensor(0), 1)
    work = in_lists(dist.scatter, 0, 40 * LARGE, group)
    while received[0] == 0:
        pass
    os.kill(other.item(), signal.SIGSTOP)
    begin = time.monotonic()
    backend(group).abort()
    raised(work.wait)
    dist.destroy_process_group(group)
    del group
    assert time.monotonic() - begin < 30


def one_is_killed(rank, size, name, when, machines=1):
    """Before the call, or somewhere in it; every rank of its machine names it, others that."""
    victim = size - 1
    if rank == victim:
        if when == "in":
            CALLS[name](LARGE)
        os.kill(os.getpid(), signal.SIGKILL)
    words = raised(lambda: [CALLS[name](LARGE).wait() for _ in range(2)])
    here = rank * machines // size == victim * machines // size
    assert re.search(named(victim, size, 1 if here else machines), words), words
    assert f"{name} of float32" in words and "on rank" in words, words
    every_later_call_raises()
