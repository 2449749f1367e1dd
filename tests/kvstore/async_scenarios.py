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
from torch.distributed import rpc

from fastreduce import KVStore
from fastreduce.kvstore import RankEnded
from fastreduce.training import CheckpointError, load, save

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


def a_group_of_the_last_two(rank, kind):
    """Messages name the ranks as they are numbered in the group, and among all."""
    group = dist.new_group([1, 2])
    if rank == 0:
        with pytest.raises(TypeError, match="distributed group that this rank is of"):
            KVStore(kind, group=group)
        dist.barrier()
        return
    with closing(KVStore(kind, group=group)) as store:

        def updater(key, update, value):
            if rank == 2:
                raise OverflowError("too much")

        store.set_updater(updater)
        store.init("a", torch.zeros(4))
        with pytest.raises(RuntimeError, match="the updater of key 'a' raised") as caught:
            store.push("a", torch.ones(4))
        if rank == 1 or kind == "dist_async":
            assert "rank 1 of the group (rank 2 of all): the upd" in str(caught.value)
        with pytest.raises(RuntimeError, match=r"rank 0 of the group \(rank 1 of all\): init of"):
            store.init("b" if rank == 1 else "c", torch.zeros(4))
    dist.barrier()


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


def stores_of_groups_and_then_of_all(rank):
    """Each group's rpc knows its own ranks only."""
    own = [dist.new_group([r]) for r in range(2)][rank]
    words = "make the store of the larger group first"
    with closing(KVStore("dist_async", group=own)), pytest.raises(RuntimeError, match=words):
        KVStore("dist_async")


# What rank 0 and rank 1 make a store of, and what both are told of it.
DIFFERENT = [
    ({"kind": "dist_sync"}, {"kind": "dist_async"}, ["kind dist_sync", "kind dist_async"]),
    ({"kind": "dist_sync"}, {"kind": "dist_sink"}, ["found 'dist_sink', wanted one of local"]),
    ({"op": "sum"}, {"op": "max"}, ["op sum", "op max"]),
    ({"op": "sum"}, {"op": "mean"}, ["found op 'mean', wanted one of"]),
    ({"staleness": 0}, {"staleness": 1}, ["staleness 0", "staleness 1"]),
    ({"staleness": 0}, {"staleness": -1}, ["found staleness -1"]),
    ({"kind": "dist_sync"}, {"kind": "dist_sync", "staleness": 1}, ["found staleness 1 with"]),
    ({"servers": [0]}, {"servers": [1]}, ["servers [0]", "servers [1]"]),
    ({"servers": [0]}, {"servers": [2]}, ["found servers [2], wanted a list of ranks, 0 to 1"]),
    ({"timeout_s": 9}, {"timeout_s": 8}, ["timeout_s 9", "timeout_s 8"]),
    ({"timeout_s": 9}, {"timeout_s": -1}, ["found timeout_s -1"]),
]


def settings_differ(rank):
    for row in DIFFERENT:
        *settings, wanted = row
        with pytest.raises((ValueError, RuntimeError)) as caught:
            KVStore(**{"kind": "dist_async", **settings[rank]})
        words = str(caught.value)
        assert all(x in words for x in wanted), words
        assert ("but rank" in words) or (rank == 1) != ("rank 1: " in words), words


def a_checkpoint_that_one_rank_cannot_load(rank, folder, kind):
    own = Path(folder) / f"{kind}-{rank}"
    with closing(KVStore(kind)) as store:
        store.init("w", torch.zeros(4))
        parts = {"net": torch.nn.Linear(2, 1), "store": store}
        save(own, parts, step=1)
        dist.barrier()
        store.push("w", torch.ones(4))
        misfit = {**parts, "net": torch.nn.Linear(3, 1)}
        with pytest.raises((CheckpointError, RuntimeError), match="net: weight: found float32 of"):
            load(own, misfit if rank else parts)
        with pytest.raises((OSError, RuntimeError), match="missing: found no checkpoint") as caught:
            load(own.with_name("missing") if rank == 0 else own, parts)
        assert rank == 0 or "load: rank 0: " in str(caught.value)
        store.pull("w", out := torch.empty(4))
        assert (out > 0).all(), "nothing was restored"
        load(own, parts)
        store.pull("w", out)
        assert out.tolist() == [0, 0, 0, 0]


def optimizers_differ(rank):
    words = "set_optimizer of SGD, {'lr': 0.1}"
    with closing(KVStore("dist_async")) as store, pytest.raises(RuntimeError, match=words):
        store.set_optimizer(torch.optim.SGD, lr=0.1 + rank)


def rpc_of_the_program_itself(rank, folder):
    options = rpc.TensorPipeRpcBackendOptions(init_method=f"file://{folder}/rpc")
    rpc.init_rpc(f"own-{rank}", rank=rank, world_size=2, rpc_backend_options=options)
    with closing(counting(2, staleness=0)) as store:
        push(store, rank)
        assert all(seen.tolist() == [1, 1] for seen in pulled(store))
    assert rpc.rpc_sync(f"own-{1 - rank}", torch.add, (torch.ones(()), 1)).item() == 2
    rpc.shutdown()


def rpc_on_one_rank_only(rank, folder):
    if rank == 0:
        options = rpc.TensorPipeRpcBackendOptions(init_method=f"file://{folder}/rpc")
        rpc.init_rpc("own", rank=0, world_size=1, rpc_backend_options=options)
    with pytest.raises(RuntimeError, match=r"found torch\.distributed\.rpc only on rank 0;"):
        KVStore("dist_async")


def control(rank):
    assert rank == 0
