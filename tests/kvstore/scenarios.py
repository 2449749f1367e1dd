"""What every rank of a group does with a store; each raises AssertionError where it is wrong."""

from __future__ import annotations

import contextlib
import traceback

import pytest
import torch
import torch.distributed as dist
from reference import reduced

from fastreduce import _C, KVStore

SETTINGS = {}  # of the stores that the scenarios are for
opened = contextlib.ExitStack()


def joined(**settings):
    """The store of all ranks; it is closed when the scenario ends."""
    store = KVStore(**{**SETTINGS, **settings})
    opened.callback(store.close)
    return store


SHAPES = {
    "conv": (20, 1, 3, 3),
    "bias": (7,),
    "one row": (1, 9),
    "scalar": (),
    "none": (0, 3),
    "no columns": (3, 0),
}


def filled(shape, dtype=torch.float32, seed=0):
    torch.manual_seed(seed)
    return torch.randn(shape).to(dtype)


def sums_in_the_order_of_the_ranks(rank, size):
    """The bits of one process that has all values."""
    store, alone = joined(), KVStore("local")
    keys = list(SHAPES)
    start = [filled(shape) for shape in SHAPES.values()]
    for s in (store, alone):
        s.init(keys, start)
    each = [[filled(shape, seed=r + 1) for shape in SHAPES.values()] for r in range(size)]
    store.push(keys, each[rank])
    alone.push(keys, [list(values) for values in zip(*each, strict=True)])
    for s in (store, alone):
        s.outs = [torch.full_like(x, -1.0) for x in start]
        s.pull(keys, s.outs)
    for key, own, wanted in zip(keys, store.outs, alone.outs, strict=True):
        assert torch.equal(own, wanted), key


def several_replicas_of_each_rank(rank, size):
    store = joined()
    store.init("x", torch.zeros(5))
    store.push("x", [torch.full((5,), float(rank)), torch.full((5,), 10.0)])
    outs = [torch.empty(5) for _ in range(3)]
    store.pull("x", outs)
    wanted = sum(range(size)) + 10.0 * size
    assert all(torch.equal(out, torch.full((5,), wanted)) for out in outs)


def every_operation(rank, size):
    for op, dtypes in _C.ops().items():
        dtype = torch.float32 if torch.float32 in dtypes else torch.uint8
        values = [torch.tensor([r + 1, 3, 6], dtype=dtype) for r in range(size)]
        store = joined(op=op)
        store.broadcast("x", torch.zeros(3, dtype=dtype), out := torch.empty(3, dtype=dtype))
        store.pushpull("x", values[rank], out)
        assert torch.equal(out, reduced(op, values)), op


def dtypes_together(rank, size):
    dtypes = [torch.int8, torch.float64, torch.bfloat16, torch.bool, torch.int32]
    store = joined(op="max")
    values = [torch.zeros(5, dtype=dtype) for dtype in dtypes]
    store.init(list(range(5)), values)
    store.push(list(range(5)), [torch.full_like(x, rank == 0) for x in values])
    store.pull(list(range(5)), values)
    assert all(torch.equal(x, torch.ones_like(x)) for x in values)


def the_first_rank_gives_the_first_values(rank, size):
    store = joined()
    store.broadcast("x", torch.full((2 * size, 2), float(rank)), out := torch.empty(2 * size, 2))
    assert torch.equal(out, torch.zeros(2 * size, 2))


def an_optimizer_takes_the_steps_of_one_process(rank, size):
    parameter = torch.nn.Parameter(filled((11, 3)))
    optimizer = torch.optim.AdamW([parameter], lr=0.1)
    store = joined()
    store.set_optimizer(torch.optim.AdamW, lr=0.1)
    store.broadcast("w", parameter.detach(), out := torch.empty(11, 3))
    for step in range(4):
        gradients = [filled((11, 3), seed=10 * step + r) for r in range(size)]
        parameter.grad = gradients[0].clone()
        for other in gradients[1:]:
            parameter.grad += other
        optimizer.step()
        store.pushpull("w", gradients[rank], out)
        assert torch.equal(out, parameter.detach()), step


def rows_of_its_own(rank, size):
    store = joined()
    table = torch.arange(22.0).reshape(11, 2)
    store.init("table", table)
    ids = torch.tensor([10 - rank, 0, 3, 3][: rank + 1])
    out = torch.empty(len(ids), 2)
    store.row_sparse_pull("table", out, ids)
    assert torch.equal(out, table[ids])
    store.init("other", table + 100)
    outs = [torch.empty(len(ids), 2), torch.empty(1, 2)]
    store.row_sparse_pull(["table", "other"], outs, [ids, torch.tensor([rank])])
    assert torch.equal(outs[0], table[ids]) and torch.equal(outs[1], table[[rank]] + 100)


def an_updater_that_raises_on_one_rank(rank, size):
    store = joined()
    store.init(["a", "b"], [torch.zeros(4), torch.zeros(4)])

    def updater(key, update, value):
        value += update
        if rank == size - 1 and key == "b":
            raise OverflowError("too much")

    store.set_updater(updater)
    with pytest.raises(RuntimeError) as caught:
        store.push(["a", "b"], [torch.ones(4), torch.ones(4)])
    words = "the updater of key 'b' raised OverflowError: too much"
    assert words in str(caught.value)
    if rank < size - 1:
        assert f"rank {size - 1}: {words}" in str(caught.value)
    store.pull(["a", "b"], outs := [torch.ones(4), torch.ones(4)])
    assert all(torch.equal(out, torch.zeros(4)) for out in outs), "keys keep their values"


def bad_arguments_on_one_rank(rank, size):
    store = joined()
    store.init("x", torch.zeros(4))
    shape = (5,) if rank == 0 else (4,)
    with pytest.raises((ValueError, RuntimeError)) as caught:
        store.push("x", torch.ones(shape))
    wanted = "found float32 of shape (5,), wanted float32 of shape (4,)"
    assert wanted in str(caught.value)
    assert rank == 0 or "push of 'x': rank 0: push: key 'x'" in str(caught.value)
    store.pull("x", out := torch.ones(4))
    assert torch.equal(out, torch.zeros(4))


def inits_that_differ(rank, size):
    store = joined()
    dtype = torch.float64 if rank == size - 1 else torch.float32
    with pytest.raises(RuntimeError, match=r"'x' \(float(32|64) of .*; but rank \d: init of 'x'"):
        store.init("x", torch.zeros(4, dtype=dtype))
    assert store.keys() == []


def calls_that_differ(rank, size):
    store = joined()
    store.init("x", torch.zeros(4))
    with pytest.raises(RuntimeError, match="wanted the same call on all ranks"):
        store.push("x", torch.ones(4)) if rank else store.pull("x", torch.ones(4))


def only_some_ranks_are_servers(rank, size):
    """The bits do not depend on who keeps the rows."""
    stores = [joined(), joined(servers=[size - 1])]
    found = []
    for store in stores:
        store.set_optimizer(torch.optim.SGD, lr=0.5)
        store.broadcast("w", filled((7, 2)), out := torch.empty(7, 2))
        store.pushpull("w", filled((7, 2), seed=rank + 1), out)
        store.row_sparse_pull("w", rows := torch.empty(2, 2), torch.tensor([6, rank]))
        assert torch.equal(rows, out[[6, rank]])
        found.append(out)
    assert torch.equal(*found)
    kept = stores[1].state_dict()["values"]["w"].shape[0]
    assert kept == (7 if rank == size - 1 else 0)


def its_state_comes_back(rank, size):
    store = joined()
    store.set_optimizer(torch.optim.SGD, lr=0.5, momentum=0.9)
    store.broadcast("w", filled((5, 2)), out := torch.empty(5, 2))
    store.push("w", torch.ones(5, 2))
    state = store.state_dict()
    store.pushpull("w", torch.ones(5, 2), wanted := torch.empty(5, 2))
    store.load_state_dict(state)
    store.pushpull("w", torch.ones(5, 2), out)
    assert torch.equal(out, wanted)
    with pytest.raises((ValueError, RuntimeError), match="load_state_dict: "):
        store.load_state_dict({"values": {}, "optimizers": {}} if rank == 0 else state)


def the_state_of_another_rank_is_refused(rank, size):
    """Its rows may have the same shape."""
    store = joined()
    store.broadcast("w", wanted := filled((size, 2)), out := torch.empty(size, 2))
    dist.all_gather_object(states := [None] * size, store.state_dict())
    with pytest.raises(
        (ValueError, RuntimeError), match=r"the state of rank \d, wanted that of rank"
    ):
        store.load_state_dict(states[(rank + 1) % size])
    store.pull("w", out)
    assert torch.equal(out, wanted)


def the_order_of_servers_says_nothing(rank, size):
    """So a state fits each store of the same servers."""
    store, other = joined(), joined(servers=list(range(size))[::-1])
    for s in (store, other):
        s.init("w", torch.zeros(2 * size, 2))
    store.push("w", filled((2 * size, 2), seed=rank))
    store.pull("w", wanted := torch.empty(2 * size, 2))
    other.load_state_dict(store.state_dict())
    other.pull("w", out := torch.empty(2 * size, 2))
    assert torch.equal(out, wanted)


SCENARIOS = [
    sums_in_the_order_of_the_ranks,
    several_replicas_of_each_rank,
    every_operation,
    dtypes_together,
    the_first_rank_gives_the_first_values,
    an_optimizer_takes_the_steps_of_one_process,
    rows_of_its_own,
    only_some_ranks_are_servers,
    its_state_comes_back,
    the_order_of_servers_says_nothing,
]
# What is wrong on one rank only, which all find out where they call alike.
REFUSED = [an_updater_that_raises_on_one_rank, bad_arguments_on_one_rank]
# These need a second rank.
REFUSED_BY_SEVERAL = [inits_that_differ, calls_that_differ, the_state_of_another_rank_is_refused]


def control(rank, size):
    """Must fail, on the last rank only."""
    assert rank < size - 1


def run(rank, size, folder, settings):
    """All of them in one group: what failed, by name, goes to a file."""
    SETTINGS.update(settings)
    refused = [*REFUSED, *(REFUSED_BY_SEVERAL if size > 1 else [])]
    found = {}
    for scenario in (*SCENARIOS, *(refused if settings["kind"] == "dist_sync" else []), control):
        try:
            with opened:
                scenario(rank, size)
            found[scenario.__name__] = ""
        except BaseException:
            found[scenario.__name__] = traceback.format_exc()
    torch.save(found, f"{folder}/found-{rank}")
    dist.barrier()
