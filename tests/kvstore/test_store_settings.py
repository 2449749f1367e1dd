"""Settings of a store that make no sense are refused: its kind and ranks, operation, optimizer."""

import pytest
import torch
from local_store import ONES, assert_nothing_changed
from torch.distributed import ReduceOp

from fastreduce import KVStore

REFUSED = {
    "an optimizer's name": (
        lambda s: s.set_optimizer("sgd", lr=0.1),
        TypeError,
        "found 'sgd', wanted a class such as torch.optim.SGD",
    ),
    "an optimizer that is made already": (
        lambda s: s.set_optimizer(torch.optim.SGD([ONES], lr=0.1)),
        TypeError,
        "found an optimizer of class SGD, wanted a class such as torch.optim.SGD",
    ),
    "an optimizer that calls the loss": (
        lambda s: s.set_optimizer(torch.optim.LBFGS),
        ValueError,
        r"found LBFGS, whose step\(\) of a gradient raises TypeError .*; wanted one that",
    ),
    "an optimizer of other gradients": (
        lambda s: s.set_optimizer(torch.optim.SparseAdam),
        ValueError,
        r"found SparseAdam, whose step\(\) of a gradient raises RuntimeError",
    ),
    "nearly a kind": (lambda s: KVStore("dist-sync"), ValueError, "did you mean 'dist_sync'"),
    "kind": (lambda s: KVStore("dist"), ValueError, "found 'dist', wanted one of local, dist_sync"),
    "staleness below 0": (
        lambda s: KVStore("dist_async", staleness=-1),
        ValueError,
        "found staleness -1, wanted 0, 1, ... or None",
    ),
    "staleness of another kind": (
        lambda s: KVStore("dist_sync", staleness=1),
        ValueError,
        "found staleness 1 with dist_sync, which waits for all ranks",
    ),
    "time": (lambda s: KVStore(timeout_s=0), ValueError, "found timeout_s 0, wanted a number of s"),
    "no server": (
        lambda s: KVStore(servers=[]),
        ValueError,
        r"found servers \[\], wanted a list of ra",
    ),
    "servers": (
        lambda s: KVStore(servers=[1]),
        ValueError,
        r"found servers \[1\], wanted a list of ranks, 0 to 0",
    ),
    "one server": (lambda s: KVStore(servers=0), ValueError, "found servers 0, wanted a list of r"),
    "a server's name": (
        lambda s: KVStore(servers=["0"]),
        ValueError,
        r"found servers \['0'\], wan",
    ),
    "a list as a server": (
        lambda s: KVStore(servers=[[0]]),
        ValueError,
        r"found servers \[\[0\]\]",
    ),
    "time in words": (
        lambda s: KVStore(timeout_s="5"),
        ValueError,
        "found timeout_s '5', wanted a",
    ),
    "a flag as time": (
        lambda s: KVStore(timeout_s=True),
        ValueError,
        "found timeout_s True, wanted a",
    ),
    "no time": (
        lambda s: KVStore(timeout_s=None),
        ValueError,
        "found timeout_s None, wanted a num",
    ),
    "half a step": (
        lambda s: KVStore("dist_async", staleness=1.5),
        ValueError,
        "found staleness 1.5, wanted 0, 1, ... or None",
    ),
    "staleness in words": (
        lambda s: KVStore("dist_async", staleness="1"),
        ValueError,
        "found staleness '1', wanted 0",
    ),
    "operations": (lambda s: KVStore(op=["sum"]), ValueError, r"found op \['sum'\], wanted one of"),
    "an operation of torch": (
        lambda s: KVStore(op=ReduceOp.PREMUL_SUM),
        ValueError,
        "found op .*PREMUL_SUM.*, wanted one of",
    ),
    "no updater": (lambda s: s.set_updater(None), TypeError, "found None, wanted a function"),
    "an optimizer's settings": (
        lambda s: s.set_optimizer(torch.optim.SGD, rate=1),
        ValueError,
        r"found settings \{'rate': 1\}, wanted some that SGD takes \(.*'rate'",
    ),
    "an optimizer's lr": (
        lambda s: s.set_optimizer(torch.optim.SGD, lr=-1),
        ValueError,
        r"found settings \{'lr': -1\}, wanted some that SGD takes \(Invalid learning rate",
    ),
    "op": (lambda s: KVStore(op="mean"), ValueError, "found op 'mean', wanted one of avg, band"),
    "no group": (lambda s: KVStore("dist_sync"), RuntimeError, "found no torch.distributed group"),
}


@pytest.mark.parametrize(("call", "error", "words"), REFUSED.values(), ids=REFUSED)
def test_settings_that_make_no_sense(store, call, error, words):
    with pytest.raises(error, match=words):
        call(store)
    assert_nothing_changed(store)


@pytest.mark.parametrize(
    ("op", "name", "wanted"), [(ReduceOp.MAX, "max", 3), (ReduceOp(ReduceOp.AVG), "avg", 2)]
)
def test_an_operation_of_torch(op, name, wanted):
    store = KVStore(op=op)
    store.init("x", torch.zeros(2))
    store.pushpull("x", [torch.full((2,), 1.0), torch.full((2,), 3.0)], out := torch.empty(2))
    assert store.op == name and out.tolist() == [wanted] * 2


@pytest.mark.parametrize("settings", [{}, {"capturable": True}, {"fused": True}])
def test_optimizers_that_are_not_refused(settings):
    """Capturable ones are for GPUs, where rows may be."""
    KVStore().set_optimizer(torch.optim.Adam, lr=0.1, **settings)
