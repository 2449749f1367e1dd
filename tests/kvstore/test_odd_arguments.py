"""Arguments that Python itself stumbles over: nested without end, or without an order."""

import pytest
import torch
from local_store import ONES, value
from sweeps import one_in

from fastreduce import KVStore


def of_itself():
    found = []
    found.append(found)
    return found


def deep():
    found = []
    for _ in range(100_000):
        found = [found]
    return found


CALLS = {
    "a key": (lambda s, x: s.push(x, ONES), TypeError, "found the key"),
    "a key of several": (lambda s, x: s.init(["z", x], [ONES] * 2), TypeError, "found the key"),
    "a value": (lambda s, x: s.push("w", x), ValueError, "replica 0: found list, wanted float32"),
    "a first value": (lambda s, x: s.init("z", x), ValueError, "found list, wanted a dense"),
    "an out": (lambda s, x: s.pull("w", x), ValueError, "replica 0: found list, wanted"),
    "a priority": (lambda s, x: s.push("w", ONES, x), TypeError, "found priority"),
    "rows": (lambda s, x: s.row_sparse_pull("w", ONES, x), ValueError, "found row_ids list"),
    "an updater": (lambda s, x: s.set_updater(x), TypeError, "wanted a function"),
    "an optimizer": (lambda s, x: s.set_optimizer(x), TypeError, "wanted a class such as"),
    "a setting": (
        lambda s, x: s.set_optimizer(torch.optim.SGD, lr=x),
        ValueError,
        "found settings {'lr': ",
    ),
    "a state": (lambda s, x: s.load_state_dict(x), ValueError, r"returns \(list\)"),
    "the state of an optimizer": (
        lambda s, x: s.load_state_dict({**s.state_dict(), "optimizers": {"w": x}}),
        ValueError,
        "wanted that of no optimizer",
    ),
    "its name": (
        lambda s, x: s.load_state_dict({**s.state_dict(), "optimizer": x}),
        ValueError,
        "found another thing than what state_dict returns",
    ),
    "a kind": (lambda s, x: KVStore(x), ValueError, "wanted one of local, dist_sync"),
    "an operation": (lambda s, x: KVStore(op=x), ValueError, "wanted one of avg"),
    "servers": (lambda s, x: KVStore(servers=x), ValueError, "found servers"),
    "a staleness": (
        lambda s, x: KVStore("dist_async", staleness=x),
        ValueError,
        "wanted 0, 1, ... or None",
    ),
    "a time": (lambda s, x: KVStore(timeout_s=x), ValueError, "wanted a number of seconds"),
}


@pytest.mark.parametrize("made", one_in(2, [of_itself, deep], "cases"))
@pytest.mark.parametrize(("call", "error", "words"), CALLS.values(), ids=CALLS)
def test_lists_without_an_end(store, call, error, words, made):
    with pytest.raises(error, match=words) as caught:
        call(store, made())
    assert len(str(caught.value)) < 300
    assert torch.equal(value(store, "w"), torch.zeros(2, 3)) and store.keys() == ["w", 3]


@pytest.mark.parametrize("priority", [float("nan"), [1, float("nan")]])
@pytest.mark.parametrize("call", ["push", "pushpull", "broadcast"])
def test_a_priority_that_is_no_number(store, call, priority):
    keys, values = ["w", 3], [torch.ones(2, 3), torch.ones(())]
    if call == "broadcast":
        keys = ["x", "y"]
    arguments = [keys, values, *([values] * (call == "broadcast"))]
    with pytest.raises(ValueError, match=r"found priority .*nan.*, wanted numbers that have an or"):
        getattr(store, call)(*arguments, priority=priority)
    assert torch.equal(value(store, "w"), torch.zeros(2, 3)) and store.keys() == ["w", 3]


def test_priorities_that_are_infinite(store):
    seen = []
    store.set_updater(lambda key, *_: seen.append(key))
    store.push(["w", 3], [ONES, torch.ones(())], [-float("inf"), float("inf")])
    assert seen == [3, "w"]


def test_rows_of_a_value_that_has_none(store):
    store.init("e", torch.zeros(0, 3))
    with pytest.raises(ValueError, match="key 'e': found numbers of rows, wanted none: the value"):
        store.row_sparse_pull("e", torch.empty(1, 3), torch.tensor([0]))
    store.row_sparse_pull("e", torch.empty(0, 3), torch.tensor([], dtype=torch.int64))
