"""What each rank does with an asynchronous store; raises AssertionError where it is wrong."""

import random
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
        "init": lambda store: store.init("c", torch.zeros(4)),
        "set_optimizer": lambda store: store.set_optimizer(torch.optim.SGD, lr=1),
        "load_state_dict": lambda store: store.load_state_dict(store.state_dict()),
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


def control(rank):
    assert rank == 0
