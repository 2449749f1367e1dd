"""send and recv: what arrives, and a peer that is gone."""

import os
import re
import signal
import threading
import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from failure_scenarios import LARGE, backend, in_turn, raised


def ends(size):
    """Ranks that send and take: of different machines, where there are several."""
    return 0, size - 1


def round_the_ring(rank, size):
    """All at once, waited for in either order."""
    for elems in (0, 3, LARGE):
        for order in (1, -1):
            got = torch.zeros(elems)
            works = [
                dist.isend(torch.full((elems,), float(rank)), (rank + 1) % size),
                dist.irecv(got, (rank - 1) % size),
            ]
            for work in works[::order]:
                assert work.wait()
                assert work.wait()  # again, at once
            assert torch.equal(got, torch.full((elems,), float((rank - 1) % size)))


def several_at_once(rank, size):
    """In order by tag, of two tags in another order on each, and in a batch."""
    first, last = ends(size)
    for tags in ([0, 0, 0], [1, 2, 1]):
        if rank == first:
            for i, tag in sorted(enumerate(tags), key=lambda x: x[1]):
                dist.send(torch.full((i + 1,), float(i)), last, tag=tag)
        if rank == last:
            outs = [torch.zeros(i + 1) for i in range(3)]
            for work in [dist.irecv(x, first, tag=t) for x, t in zip(outs, tags, strict=True)]:
                work.wait()
            assert all(torch.equal(x, torch.full((i + 1,), float(i))) for i, x in enumerate(outs))
    if rank in (first, last):
        other, out = first + last - rank, torch.zeros(2)
        ops = [dist.P2POp(dist.irecv, out, other), dist.P2POp(dist.isend, torch.ones(2), other)]
        for work in dist.batch_isend_irecv(ops):
            work.wait()
        assert torch.equal(out, torch.ones(2))


def from_any_rank(rank, size):
    if rank > 0:
        return dist.send(torch.full((3,), float(rank)), 0)
    sources = set()
    for _ in range(1, size):
        sources.add(source := dist.recv(out := torch.zeros(3)))
        assert torch.equal(out, torch.full((3,), float(source)))
    assert sources == {*range(1, size)}


def gaps_are_sent(rank, size):
    first, last = ends(size)
    if rank == first:
        dist.send(torch.arange(6.0)[::2], last)
    if rank == last:
        dist.recv(got := torch.zeros(3), first)
        assert torch.equal(got, torch.tensor([0.0, 2, 4]))


WRONG = {
    "two": (lambda me: backend().send([torch.ones(1)] * 2, 0, 0), "send of 2 tensors; want one"),
    "none": (lambda me: backend().recv([], 0, 0), "recv of 0 tensors; want one"),
    "sparse": (lambda me: backend().send([torch.eye(2).to_sparse()], 0, 0), "want dense tensors"),
    "to oneself": (lambda me: backend().send([torch.ones(1)], me, 0), "send to rank . on rank .; "),
    "beyond": (lambda me: backend().recv([torch.ones(1)], 9, 0), "recv from rank 9 on .*; want an"),
    "below": (lambda me: dist.recv(torch.ones(1), -1), "recv from rank -1 on .*; want another"),
    "strided": (
        lambda me: backend().recv([torch.ones(4)[::2]], (me + 1) % dist.get_world_size(), 0),
        r"recv into a tensor of sizes \[2\] and strides \[2\], which Gloo cannot write",
    ),
}


def what_is_wrong(rank, size):
    for name, (call, wanted) in WRONG.items():
        with pytest.raises(ValueError) as caught:
            call(rank)
        assert re.search(wanted, str(caught.value)), f"{name}: {caught.value}"


def the_group_is_gone(rank, size):
    """Work that is left over can still be waited for; it raises, at the latest at its timeout."""
    group = dist.new_group()
    backend(group).set_timeout(timedelta(seconds=1))
    work = dist.irecv(torch.zeros(1), (rank + 1) % size, group=group)
    dist.barrier()
    dist.destroy_process_group(group)
    del group
    assert re.search("recv of float32 .*, tag 0, on rank", raised(work.wait))


def the_peer_has_left(rank, size):
    group = dist.new_group()
    if rank == 1:
        dist.barrier(group)
        dist.destroy_process_group(group)
    elif rank == 0:
        work = dist.irecv(torch.zeros(1), 1, group=group)
        dist.barrier(group)
        assert "on rank 0 from rank 1: rank 1 has left the group" in raised(work.wait)
    else:
        dist.barrier(group)
    dist.barrier()


def all_peers_have_left(rank, size):
    """While one is left, it may still send."""
    group = dist.new_group()
    received = torch.zeros(1)
    if rank == 0:
        dist.barrier(group)
        dist.recv(received, group=group)
        assert received == 5
        said = raised(lambda: dist.recv(received, group=group))
        assert f"from any rank: rank {size - 1} has left the group" in said, said
    else:
        dist.barrier(group)
        if rank == size - 1:
            time.sleep(1.5)  # more than a message may be on its way of one that has left
            dist.send(torch.full((1,), 5.0), 0, group=group)
        dist.destroy_process_group(group)
    dist.barrier()


def a_wait_of_centuries(rank, size):
    """Torch's clocks cannot count so far."""
    wait = timedelta(days=365 * 300)
    group = dist.new_group()
    backend(group).set_timeout(timedelta(days=365_000))
    if rank < 2:
        (dist.recv if rank else dist.send)(torch.ones(3), 1 - rank, group=group)
    assert dist.all_reduce(torch.ones(3), async_op=True).wait(wait)
    if rank == 0:
        assert dist.isend(torch.ones(3), 1).wait(wait)
    elif rank == 1:
        assert dist.irecv(torch.ones(3), 0).wait(wait)


def a_timeout_that_was_changed(rank, size):
    group = dist.new_group()
    backend(group).set_timeout(timedelta(milliseconds=150))
    if rank == 0:
        said = raised(lambda: dist.recv(torch.zeros(3), 1, group=group))
        assert "Timed out waiting 150ms" in said, said
        assert "; rank 1 has not sent it, and has made no collective call yet" in said, said
    dist.barrier()
    said = raised(lambda: dist.all_reduce(torch.ones(2), group=group))
    why = "recv of float32 [3], tag 0, on rank 0 from rank 1 reached its timeout"
    assert why in said, said


def two_threads_wait(rank, size):
    """For one message."""
    if rank == 0:
        got, said = torch.zeros(3), []
        work = dist.irecv(got, 1)
        threads = [threading.Thread(target=lambda: said.append(work.wait())) for _ in range(2)]
        for thread in threads:
            thread.start()
        dist.barrier()
        for thread in threads:
            thread.join()
        assert said == [True, True] and got.tolist() == [2, 2, 2]
    else:
        dist.barrier()
        if rank == 1:
            dist.send(torch.full((3,), 2.0), 0)


SCENARIOS = [
    two_threads_wait,
    *(round_the_ring, several_at_once, from_any_rank, gaps_are_sent, what_is_wrong),
]


def run(rank, size):
    in_turn(SCENARIOS, rank, size)


def groups_that_end(rank, size):
    scenarios = [
        *(the_group_is_gone, the_peer_has_left, all_peers_have_left),
        *(a_timeout_that_was_changed, a_wait_of_centuries),
    ]
    in_turn(scenarios, rank, size)


CALLS = {
    "recv": lambda victim: dist.recv(torch.zeros(LARGE), victim),
    "send": lambda victim: dist.send(torch.ones(LARGE), victim),
}


def one_is_killed(rank, size, name, machines=1):
    """Before it has sent or taken anything. Of another machine, its rank and machine are named."""
    victim = size - 1
    dist.barrier()
    if rank == victim:
        os.kill(os.getpid(), signal.SIGKILL)
    said = raised(lambda: CALLS[name](victim))
    here = rank * machines // size == victim * machines // size
    its_machine = f" on machine machine{machines - 1}" if machines > 1 else ""
    whom = "any rank" if name == "recv from any" else f"rank {victim}{its_machine}"
    assert re.search(rf"(recv|send) of float32 .*, on rank {rank} (from|to) {whom}: ", said), said
    assert not here or f"the process of rank {victim} has ended" in said, said


def one_is_stopped(rank, size):
    """The survivors' group has a timeout of two seconds."""
    if rank == size - 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    said = raised(lambda: dist.recv(torch.zeros(3), size - 1))
    assert f"from rank {size - 1}: " in said and "Timed out waiting 2000ms" in said, said
