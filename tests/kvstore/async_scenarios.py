"""What each rank does with an asynchronous store; raises AssertionError where it is wrong."""

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

from fastreduce import KVStore
from fastreduce.kvstore import RankEnded
from fastreduce.kvstore.server import Server

KEYS = ["a", "b", "row"]


def counting(size, **settings):
    """A store that adds what is pushed: each rank counts its own pushes."""
    store = KVStore("dist_async", **settings)
    store.set_updater(lambda key, update, value: value.add_(update))
    store.init(KEYS, [torch.zeros(size), torch.zeros(2, size), torch.zeros(1, size)])
    return store


def push(store, rank):
    size = store.num_workers
    values = [torch.zeros(shape) for shape in (size, (2, size), (1, size))]
    for value in values:
        value[..., rank] = 1
    store.push(KEYS, values)


def pulled(store):
    """By rank, how often it has pushed; as any of the keys tells."""
    size = store.num_workers
    outs = [torch.empty(x) for x in (size, (2, size), (1, size))]
    store.pull(KEYS, outs)
    return [outs[0], *outs[1], *outs[2]]


def wait_for(file):
    while not file.exists():
        time.sleep(0.01)


def nobody_is_further_ahead(rank, size, staleness):
    draw = random.Random(rank)
    with closing(counting(size, staleness=staleness)) as store:
        for step in range(1, 11):
            time.sleep(draw.choice([0, 0, 0.02]))
            push(store, rank)
            for seen in pulled(store):
                assert seen[rank] == step
                assert (seen >= step - staleness).all(), f"step {step}: {seen}"
                # One more, which does not return yet.
                assert (seen <= step + staleness + 1).all(), f"step {step}: {seen}"


def without_a_limit(rank, folder):
    ahead = Path(folder) / "ahead"
    with closing(counting(2)) as store:
        if rank:
            wait_for(ahead)
        for _ in range(5):
            push(store, rank)
        if rank == 0:
            assert all(seen.tolist() == [5, 0] for seen in pulled(store))
            ahead.touch()


def one_is_late(rank, folder):
    late = Path(folder) / "late"
    with closing(counting(2, staleness=2, timeout_s=1)) as store:
        if rank:
            wait_for(late)
            return
        push(store, rank)
        push(store, rank)
        with pytest.raises(TimeoutError, match=r"push of 'a', 'b', 'row': waited 1 s: rank 1 is b"):
            push(store, rank)
        late.touch()


def one_has_less_to_do(rank, staleness):
    with closing(counting(2, staleness=staleness)) as store:
        for _ in range(2 if rank else 8):
            push(store, rank)
        if rank == 0:
            assert all(seen.tolist() == [8, 2] for seen in pulled(store))


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


def an_updater_raises(rank, staleness):
    with closing(KVStore("dist_async", staleness=staleness)) as store:

        def updater(key, update, value):
            value += update
            if rank == 1 and key == "b":
                raise OverflowError("too much")

        store.set_updater(updater)
        store.init(["a", "b"], [torch.zeros(4), torch.zeros(4)])
        with pytest.raises(RuntimeError) as caught:
            store.push(["a", "b"], [torch.ones(4), torch.ones(4)])
        assert (
            "push: rank 1: the updater of key 'b' raised OverflowError: too much; the key's "
            in (str(caught.value))
        )
        dist.barrier()
        store.pull(["a", "b"], outs := [torch.empty(4), torch.empty(4)])
        assert outs[0].tolist() == [2, 2, 2, 2]
        assert outs[1].tolist() == [2, 2, 0, 0]


def a_server_fails(rank, staleness):
    """Rank 1's, in an update; it goes on, as does everybody, and all can take leave."""
    store = KVStore("dist_async", staleness=staleness, timeout_s=20)
    with closing(store):

        def updater(key, update, value):
            if rank == 1:
                raise SystemExit("enough")

        store.set_updater(updater)
        store.init("a", torch.zeros(4))
        words = "push: rank 1: the update of key 'a' raised SystemExit: enough; the key's rows"
        with pytest.raises(RuntimeError, match=words):
            store.push("a", torch.ones(4))
        dist.barrier()
        if rank == 1:
            Server._merged = lambda *_: [][0]
        dist.barrier()
        with pytest.raises(RuntimeError, match="rank 1: the update of key 'a' raised IndexError: "):
            store.push("a", torch.ones(4))
        with pytest.raises(RuntimeError, match=r"KeyError.*no such key") as caught:
            store._values._remote.ask({1: ("read", ["no such key"])})
        assert not isinstance(caught.value, RankEnded)
        store.pull("a", out := torch.ones(4))
        assert out.tolist() == [0, 0, 0, 0]


def half_averages(rank, kind):
    """The sum of these is too large for a float16."""
    with closing(KVStore(kind, op="avg", **({"staleness": 0} if "async" in kind else {}))) as store:
        store.init("x", torch.zeros(3, dtype=torch.float16))
        store.push("x", [torch.full((3,), 60000.0, dtype=torch.float16)] * (1 + rank))
        store.pull("x", out := torch.empty(3, dtype=torch.float16))
        assert out.tolist() == [60000] * 3


def an_updater_that_calls_its_own_store(rank):
    calls = {
        "pull": lambda store: store.pull("b", torch.empty(4)),
        "push": lambda store: store.push("b", torch.ones(4)),
        "row_sparse_pull": lambda store: store.row_sparse_pull(
            "b", torch.empty(1, 4), torch.tensor([0])
        ),
        "close": lambda store: store.close(),
    }
    for name, call in calls.items():
        with closing(KVStore("dist_async", timeout_s=20)) as store:
            store.set_updater(lambda *_, call=call, store=store: call(store))
            store.init(["a", "b"], [torch.zeros(4), torch.zeros(4)])
            words = f"{name}: found a call by the updater of key 'a' on its own store"
            with pytest.raises(RuntimeError, match=words):
                store.push("a", torch.ones(4))
            store.pull("a", out := torch.ones(4))
            assert out.tolist() == [0, 0, 0, 0]


def what_is_wrong_on_one_rank_is_its_own(rank):
    with closing(counting(2, staleness=0)) as store:
        if rank == 0:
            with pytest.raises(ValueError, match=r"push: key 'a', replica 0: found float32 of sha"):
                store.push("a", torch.zeros(5))
        push(store, rank)
        assert all(seen.tolist() == [1, 1] for seen in pulled(store))


def each_push_is_an_update(rank):
    with closing(KVStore("dist_async", op="avg")) as store:
        store.set_updater(lambda key, update, value: value.add_(update))
        store.init("x", torch.zeros(3))
        store.push("x", [torch.full((3,), 1.0), torch.full((3,), 3.0)])
        dist.barrier()
        store.pull("x", out := torch.empty(3))
        assert out.tolist() == [4, 4, 4]  # the average of the replicas, once for each rank


def a_store_that_is_closed(rank):
    store = counting(2)
    with closing(store):
        store.close()
    store.close()
    with pytest.raises(RuntimeError, match="found a store that is closed, wanted an open one"):
        push(store, rank)


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


def control(rank):
    assert rank == 0
