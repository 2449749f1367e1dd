"""What ranks do that must agree on a store; raises AssertionError where it is wrong."""

from contextlib import closing
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from async_scenarios import counting, pulled, push
from torch.distributed import rpc

from fastreduce import KVStore
from fastreduce.training import CheckpointError, load, save


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


def an_order_of_settings_is_no_difference(rank):
    settings = [{"lr": 0.1, "momentum": 0.9}, {"momentum": 0.9, "lr": 0.1}][rank]
    with closing(KVStore("dist_async")) as store:
        store.set_optimizer(torch.optim.SGD, **settings)


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
