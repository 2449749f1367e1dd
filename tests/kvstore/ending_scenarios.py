"""What each rank does where one ends or hangs, or closes its store; raises AssertionError where it
is wrong."""

import os
import random
import signal
import threading
import time
from contextlib import closing
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from async_scenarios import counting, pulled, push
from torch.distributed.rpc import backend_registry

from fastreduce import KVStore
from fastreduce.kvstore import RankEnded, remote


def kill_later(rng):
    delay_s = rng.uniform(0, 0.2)
    threading.Timer(delay_s, lambda: os.kill(os.getpid(), signal.SIGKILL)).start()


def a_worker_is_killed(rank, seed):
    with closing(counting(3, servers=[0], staleness=1, timeout_s=20)) as store:
        if rank == 2:
            kill_later(random.Random(seed))
        for _ in range(10**6 if rank == 2 else 50):
            push(store, rank)
        assert all(seen[rank] == 50 for seen in pulled(store))


def a_server_is_killed(rank, seed):
    with closing(counting(3, staleness=[0, 2, None][seed % 3], timeout_s=20)) as store:
        if rank == 1:
            kill_later(random.Random(seed))
        with pytest.raises(RankEnded, match="rank 1 has ended") as caught:
            while True:
                push(store, rank)
                pulled(store)
        assert caught.value.rank == 1
        # Of "row", which has one row, rank 1 kept none.
        assert "the rows that it kept of keys 'a', 'b'; begin again" in str(caught.value)


def one_of_all_is_killed(rank):
    store = KVStore("dist_sync")
    store.init("a", torch.zeros(4))
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    words = (
        rf": rank {rank} found that another rank has ended or does not answer \(.*\); torch does"
    )
    with pytest.raises(RankEnded, match=words) as caught:
        while True:
            store.push("a", torch.ones(4))
    assert caught.value.rank is None


# Where rank 1 ends: what it calls there, in which of torch's or our modules.
PLACES = {
    "before it knows the meeting place": (remote.socket, "gethostname"),
    "when it has met the others": (
        backend_registry,
        "_tensorpipe_exchange_and_check_all_device_maps",
    ),
}


def one_ends_while_a_store_is_made(rank, place):
    if rank == 1:
        setattr(*PLACES[place], lambda *_: os.kill(os.getpid(), signal.SIGKILL))
    with pytest.raises(RankEnded, match=r"rank 0 found that another rank has ended or does not"):
        KVStore("dist_async")


def a_server_is_stopped(rank):
    with closing(counting(2, timeout_s=1)) as store:
        if rank == 1:
            os.kill(os.getpid(), signal.SIGSTOP)
        with pytest.raises(TimeoutError, match="waited 1 s: rank 1 does not answer"):
            while True:
                push(store, rank)


def one_ends_without_taking_leave(rank):
    store = counting(2)
    if rank == 1:
        return
    with pytest.raises(RuntimeError, match="rank 1 has ended"):
        while True:
            push(store, rank)
    store.close()


def calls_go_through_no_shared_memory(rank):
    """A rank that ends while it writes there would stop the others for good."""
    with closing(counting(2)) as store:
        push(store, rank)
        assert "tensorpipe_shm" not in Path("/proc/self/maps").read_text()


def a_store_that_is_closed(rank):
    store = counting(2)
    with closing(store):
        store.close()
    store.close()
    with closing(counting(2)) as other:
        with pytest.raises(RuntimeError, match="found a store that is closed, wanted an open one"):
            push(store, rank)
        store.close()
        push(other, rank)
        dist.barrier()
        assert all(seen.tolist() == [1, 1] for seen in pulled(other)), "the other store's pushes"
        dist.barrier()


def stores_one_after_the_other_leave_nothing_open(rank):
    open_files = []
    for _ in range(5):
        with closing(counting(2)) as store:
            push(store, rank)
        open_files.append(len(os.listdir("/proc/self/fd")))
        dist.barrier()
    assert open_files[1:] == open_files[1:2] * 4, open_files


def where_ranks_met_lasts_until_all_have_left(rank):
    """Who still looks there would print that the server has crashed, with a stack of C++."""
    places, answers = [], []
    meet, shutdown = remote._rendezvous_store, remote.rpc.shutdown

    def met(peers):
        places.append(meet(peers))
        return places[0]

    def slowly(*args, **settings):
        shutdown(*args, **settings)
        time.sleep(0.5)
        answers.append(places[0].check(["anything"]))

    remote._rendezvous_store = met
    if rank == 1:
        remote.rpc.shutdown = slowly
    store = counting(2)
    if rank == 0:
        places.clear()  # so that what keeps it is not this list
    with closing(store):
        push(store, rank)
    assert answers == ([False] if rank else [])


def a_closed_store_is_asked(rank, folder):
    """Without a word: on standard error there would be the traceback of the other process."""
    said = Path(folder) / f"said-{rank}"
    with said.open("wb") as file:
        os.dup2(file.fileno(), 2)
    first, last = counting(2), counting(2)
    remote = first._values._remote
    with closing(last):
        first.close()
        dist.barrier()
        for call in (("ping",), ("leave", 1, False)):
            assert remote._send(1 - rank, *call).result(20) is None
        push(last, rank)
        dist.barrier()
    assert "KeyError" not in said.read_text()
