"""send and recv that do not fit, or a message that does not come: both ranks raise."""

import os
import signal
import threading
import time
from datetime import timedelta
from functools import partial
from itertools import product

import torch
import torch.distributed as dist
from failure_scenarios import LARGE, backend, raised

# What is sent, what it is received into, and how errors call them.
DIFFERENT = {
    "size": (torch.ones(3), torch.ones(2), "float32 [3]", "float32 [2]"),
    "size, of large ones": (
        torch.ones(LARGE),
        torch.ones(LARGE + 1),
        "float32 [2000000]",
        "float32 [2000001]",
    ),
    "none": (torch.ones(0), torch.ones(1), "float32 [0]", "float32 [1]"),
    "dtype": (torch.ones(3), torch.ones(3, dtype=torch.int32), "float32 [3]", "int32 [3]"),
    "shape": (torch.ones(2, 3), torch.ones(3, 2), "float32 [2, 3]", "float32 [3, 2]"),
    "dimensions": (torch.ones(1), torch.tensor(1.0), "float32 [1]", "float32 []"),
}


def raises_on_both(rank, group, call, words):
    """The call, and each later one of every rank."""
    for one in (
        call,
        lambda: dist.send(torch.ones(1), 1 - rank, group=group),
        lambda: dist.recv(torch.ones(1), 1 - rank, group=group, tag=5),
        lambda: dist.all_reduce(torch.ones(1), group=group),
    ):
        assert words in (said := raised(one)), said


def they_differ(rank, size):
    """In a group of its own each, which the next one does not notice."""
    for (sent, received, *words), first in product(DIFFERENT.values(), (0, 1, None)):
        group = dist.new_group([0, 1])
        if rank > 1:
            continue
        if first == 1 - rank:
            time.sleep(0.2)  # the other waits in Gloo by then
        call, tensor = (dist.recv, received) if rank == 0 else (dist.send, sent)
        told = f"rank 1 sends {words[0]} to rank 0, which receives {words[1]}, tag 0; want the same"
        raises_on_both(rank, group, partial(call, tensor.clone(), 1 - rank, group=group), told)
        dist.destroy_process_group(group)


def others_raise_too(rank, size):
    """A rank that waits for a third one, and one that has begun an allreduce."""
    group = dist.new_group()
    dist.barrier()  # of the other group: all have made this one
    told = "rank 1 sends float32 [3] to rank 0, which receives float64 [4], tag 7; want the same"
    calls = [
        lambda: dist.recv(torch.ones(4, dtype=torch.float64), 1, group=group, tag=7),
        lambda: dist.isend(torch.ones(3), 0, group=group, tag=7).wait(),
        lambda: dist.recv(torch.ones(4), 3, group=group),
        lambda: dist.all_reduce(torch.ones(4), group=group),
    ]
    assert told in (said := raised(calls[rank])), said


def in_a_batch(rank, size):
    group = dist.new_group([0, 1])
    if rank > 1:
        return
    other = 1 - rank
    ops = [
        dist.P2POp(dist.irecv, torch.ones(2, dtype=torch.int64), other, group),
        dist.P2POp(dist.isend, torch.ones(2 + rank, dtype=torch.int64), other, group),
    ]

    def call():
        for work in dist.batch_isend_irecv(ops):
            work.wait()

    assert "rank 1 sends int64 [3] to rank 0, which receives int64 [2]" in (said := raised(call)), (
        said
    )


def the_last_of_many(rank, size):
    """Of tags in another order on each; some were received when others wait."""
    group = dist.new_group([0, 1])
    if rank > 1:
        return
    tags = [*range(20)] if rank == 0 else [*range(19, -1, -1)]
    tensors = {tag: torch.full((tag + 1,), float(tag)) for tag in tags}
    works = {}
    for _ in range(2):
        for tag in tags:
            x = tensors[tag] if rank == 0 else torch.zeros(tag + 1)
            call = dist.isend if rank == 0 else dist.irecv
            works[tag] = (call(x, 1 - rank, group=group, tag=tag), x)
        for tag, (work, x) in works.items():
            work.wait()
            assert torch.equal(x, tensors[tag])
    call = dist.send if rank == 0 else dist.recv
    said = raised(lambda: call(torch.ones(2 - rank), 1 - rank, group=group, tag=7))
    assert "rank 0 sends float32 [2] to rank 1, which receives float32 [1], tag 7" in said, said


def more_wait_than_are_compared(rank, size):
    """They arrive all the same."""
    count = 300
    tensors = [torch.full((2,), float(i)) for i in range(count)]
    if rank == 0:
        for work in [dist.isend(x, 1) for x in tensors]:
            work.wait()
    elif rank == 1:
        time.sleep(0.2)
        outs = [torch.zeros(2) for _ in range(count)]
        for work in [dist.irecv(x, 0) for x in outs]:
            work.wait()
        assert all(torch.equal(x, y) for x, y in zip(outs, tensors, strict=True))


def after_any_rank(rank, size):
    """Which message a later call of the same tag receives is not known, so it is not compared."""
    for shape in ((2, 3), (6,)):
        if rank == 1:
            dist.send(torch.ones(shape), 0)
            dist.send(torch.ones(3), 0, tag=1)
        elif rank == 0:
            dist.recv(got := torch.zeros(6), None if shape == (2, 3) else 1)
            assert torch.equal(got, torch.ones(6))
            dist.recv(torch.zeros(3), 1, tag=1)


def gaps_and_objects(rank, size):
    if rank == 1:
        dist.send(torch.ones(4, 4).t()[:, ::2], 0)
        dist.send_object_list([{"a": [1] * 1000}, None], 0)
    elif rank == 0:
        dist.recv(torch.zeros(4, 2), 1)
        dist.recv_object_list(got := [0, 0], 1)
        assert got == [{"a": [1] * 1000}, None]


def an_abort_wakes(rank, size):
    group = dist.new_group([0, 1])
    dist.barrier()
    if rank == 0:
        abort = threading.Timer(0.2, backend(group).abort)
        abort.start()
        assert "rank 0 gave up: rank 0 called abort" in raised(
            lambda: dist.recv(torch.ones(1), 1, group=group)
        )
        abort.join()
    elif rank == 1:
        assert "rank 0 called abort" in raised(lambda: dist.recv(torch.ones(1), 0, group=group))


def after_a_call_that_failed(rank, size):
    """The rank sends nothing any more, and whom it would have sent to raises."""
    group = dist.new_group([0, 1])
    if rank == 0:
        backend(group).set_timeout(timedelta(milliseconds=150))
        raised(lambda: dist.all_reduce(torch.ones(1), group=group))
        assert "cannot be used any more" in raised(lambda: dist.send(torch.ones(1), 1, group=group))
    elif rank == 1:
        told = (
            "rank 0 gave up: call 1, allreduce (sum) of float32 [1], on rank 0 reached its timeout"
        )
        assert told in (said := raised(lambda: dist.recv(torch.ones(1), 0, group=group))), said


def from_a_fork(rank, size):
    """Gloo's threads are not there: it raises, and its parent goes on."""
    if (child := os.fork()) == 0:
        said = raised(lambda: dist.recv(torch.zeros(1), (rank + 1) % size))
        os._exit(0 if "made before a fork" in said else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


SCENARIOS = [
    *(they_differ, others_raise_too, in_a_batch, the_last_of_many, more_wait_than_are_compared),
    *(after_any_rank, gaps_and_objects, an_abort_wakes, after_a_call_that_failed, from_a_fork),
]


def run(rank, size):
    for scenario in SCENARIOS:
        if scenario is not others_raise_too or size > 3:
            dist.barrier()
            scenario(rank, size)


def killed_while_any_rank_may_send(rank, size):
    """Every survivor raises soon; the group's timeout is long."""
    dist.barrier()
    if rank == size - 1:
        time.sleep(0.2)
        os.kill(os.getpid(), signal.SIGKILL)
    begun = time.monotonic()
    said = raised(lambda: dist.recv(torch.zeros(3)))
    assert f"from any rank: the process of rank {size - 1} has ended" in said, said
    assert time.monotonic() - begun < 30
    # A survivor that ends is one that has ended, too, to a slower one.
    store = dist.distributed_c10d._get_default_store()
    store.set(f"heard of {rank}", "")
    store.wait([f"heard of {x}" for x in range(size - 1)])
