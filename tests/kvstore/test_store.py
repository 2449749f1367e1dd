"""`KVStore("local")`: what is pushed, updated and pulled, and what is refused."""

import pytest
import torch
from torch import nn

import fastreduce
from fastreduce import KVStore


@pytest.fixture
def store():
    made = KVStore()
    made.init(["w", 3], [torch.zeros(2, 3), torch.ones(())])
    return made


def value(store, key):
    shape = (2, 3) if key == "w" else ()
    store.pull(key, out := torch.empty(shape))
    return out


class TestLikeMXNet:
    """The examples of the documentation of MXNet's kvstore, in our own numbers."""

    def test_a_first_value_is_pulled(self, store):
        assert torch.equal(value(store, 3), torch.ones(()))

    def test_a_push_without_an_updater_replaces_the_value(self, store):
        store.push("w", torch.full((2, 3), 4.0))
        assert torch.equal(value(store, "w"), torch.full((2, 3), 4.0))

    def test_a_list_of_replicas_is_summed_and_not_changed(self, store):
        pushed = [torch.full((2, 3), float(i)) for i in (1, 2, 3)]
        store.push("w", pushed)
        assert torch.equal(value(store, "w"), torch.full((2, 3), 6.0))
        assert [x[0, 0].item() for x in pushed] == [1, 2, 3]

    def test_an_updater_merges_into_the_value(self, store):
        store.set_updater(lambda key, update, stored: stored.add_(update, alpha=2))
        store.push("w", torch.ones(2, 3))
        store.push("w", torch.ones(2, 3))
        assert torch.equal(value(store, "w"), torch.full((2, 3), 4.0))

    def test_lists_of_keys(self, store):
        store.push(["w", 3], [[torch.ones(2, 3), torch.ones(2, 3)], [torch.tensor(5.0)] * 1 * 2])
        assert value(store, 3).item() == 10

    def test_pushpull_without_an_out_writes_into_what_was_pushed(self, store):
        x = [torch.ones(2, 3), torch.ones(2, 3)]
        store.pushpull("w", x)
        assert all(torch.equal(replica, torch.full((2, 3), 2.0)) for replica in x)

    def test_broadcast(self):
        outs = [torch.empty(4), torch.empty(4)]
        KVStore().broadcast("b", torch.arange(4.0), outs)
        assert all(torch.equal(out, torch.arange(4.0)) for out in outs)

    def test_rows(self):
        store, table = KVStore(), torch.arange(12.0).reshape(4, 3)
        store.init("t", table)
        store.row_sparse_pull("t", out := torch.empty(3, 3), torch.tensor([3, 0, 3]))
        assert torch.equal(out, table[[3, 0, 3]])

    def test_rows_of_a_list_of_keys(self):
        store, tables = KVStore(), [torch.arange(12.0).reshape(4, 3), torch.arange(5)]
        store.init(["a", "b"], tables)
        outs = [torch.empty(2, 3), torch.empty(1, dtype=torch.int64)]
        store.row_sparse_pull(["a", "b"], outs, [torch.tensor([3, 0]), torch.tensor([4])])
        assert torch.equal(outs[0], tables[0][[3, 0]]) and outs[1].tolist() == [4]

    @pytest.mark.parametrize(("priority", "order"), [(0, "ab"), ([1, 2], "ba"), ([2, 1], "ab")])
    def test_the_highest_priority_is_updated_first(self, priority, order):
        store, seen = KVStore(), []
        store.init(["a", "b"], [torch.zeros(1), torch.zeros(1)])
        store.set_updater(lambda key, *_: seen.append(key))
        store.push(["a", "b"], [torch.zeros(1), torch.zeros(1)], priority)
        assert "".join(seen) == order


@pytest.mark.parametrize("op", fastreduce._C.ops())
def test_every_operation(op):
    values = [torch.tensor([x, 3], dtype=torch.uint8) for x in (5, 6, 12)]
    if op == "avg":
        values = [x.float() for x in values]
    wanted = [x.clone() for x in values]
    fastreduce.allreduce(wanted, op)
    store = KVStore(op=op)
    store.broadcast("x", torch.zeros_like(values[0]), out := torch.empty_like(values[0]))
    store.pushpull("x", values, out)
    assert torch.equal(out, wanted[0])


def test_a_network_learns_as_without_a_store():
    torch.manual_seed(0)
    bare = nn.Linear(4, 2)
    replicas = [nn.Linear(4, 2) for _ in range(2)]
    optimizer = torch.optim.SGD(bare.parameters(), lr=0.1, momentum=0.9)
    store = KVStore()
    store.set_optimizer(torch.optim.SGD, lr=0.1, momentum=0.9)
    names = [name for name, _ in bare.named_parameters()]
    first = [p.detach() for p in bare.parameters()]
    store.broadcast(names, first, [list(x) for x in zip(*map(params_of, replicas), strict=True)])
    for _ in range(3):
        X = torch.randn(6, 4)
        optimizer.zero_grad()
        bare(X).square().sum().backward()
        optimizer.step()
        for replica, shard in zip(replicas, X.chunk(2), strict=True):
            replica.zero_grad()
            replica(shard).square().sum().backward()
        gradients = zip(*fastreduce.grads(replicas), strict=True)
        store.push(names, [list(x) for x in gradients])
        store.pull(names, [list(x) for x in zip(*map(params_of, replicas), strict=True)])
    for own, wanted in zip(params_of(replicas[1]), bare.parameters(), strict=True):
        torch.testing.assert_close(own, wanted)


def params_of(module):
    return list(module.parameters())


def test_an_updater_that_raises_names_the_key_and_changes_none(store):
    def updater(key, update, stored):
        stored.add_(update)
        if key == 3:
            raise ZeroDivisionError("no")

    store.set_updater(updater)
    with pytest.raises(RuntimeError, match="the updater of key 3 raised ZeroDivisionError: no"):
        store.push(["w", 3], [torch.ones(2, 3), torch.ones(())])
    assert torch.equal(value(store, "w"), torch.zeros(2, 3)) and value(store, 3).item() == 1


def test_replicas_that_share_memory(store):
    shared = torch.ones(1, 3)
    store.push("w", [torch.ones(2, 3), shared.expand(2, 3), shared.expand(2, 3)])
    assert torch.equal(value(store, "w"), torch.full((2, 3), 3.0))
    store.push("w", [ONES] * 4)
    assert torch.equal(value(store, "w"), torch.full((2, 3), 4.0))


ONES = torch.ones(2, 3)
REFUSED = {
    "out of a pushpull": (
        lambda s: s.pushpull("w", ONES, out=torch.zeros(3)),
        ValueError,
        r"pull: key 'w', replica 0: found float32 of shape \(3,\)",
    ),
    "out of a broadcast": (
        lambda s: s.broadcast(["x", "y"], [ONES, ONES], out=[torch.zeros(2, 3), torch.zeros(3)]),
        ValueError,
        r"pull: key 'y', replica 0: found float32 of shape \(3,\), wanted float32",
    ),
    "no out of a broadcast": (
        lambda s: s.broadcast("x", ONES, out=None),
        ValueError,
        "pull: key 'x': found no tensor, wanted float32 of shape",
    ),
    "priorities of a broadcast": (
        lambda s: s.broadcast("x", ONES, torch.zeros(2, 3), [1, 2]),
        ValueError,
        "found 2 priorities for 1 keys",
    ),
    "an optimizer's name": (
        lambda s: s.set_optimizer("sgd", lr=0.1),
        TypeError,
        "found 'sgd', wanted a class such as torch.optim.SGD",
    ),
    "a tensor without values": (
        lambda s: s.init("x", torch.zeros(4, device="meta")),
        ValueError,
        "key 'x': found a meta tensor, wanted cpu or cuda",
    ),
    "no state": (lambda s: s.load_state_dict({}), ValueError, "found another thing than what s"),
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
    "no priority": (
        lambda s: s.push("w", ONES, None),
        TypeError,
        "found priority None, wanted a number, or a list with one per key",
    ),
    "a priority in words": (
        lambda s: s.push("w", ONES, ["high"]),
        TypeError,
        r"found priority \['high'\], wanted a number",
    ),
    "a state of numbers": (
        lambda s: s.load_state_dict({"values": 1, "optimizers": 2, "pushes": 3, "ranks": 1}),
        ValueError,
        "found another thing than what state_dict returns",
    ),
    "rows of a key of another kind": (
        lambda s: s.row_sparse_pull(1.5, ONES, torch.tensor([0, 1])),
        TypeError,
        "row_sparse_pull: found the key 1.5, wanted a string or an integer, or a list",
    ),
    "rows of fewer values": (
        lambda s: s.row_sparse_pull(["w", 3], [ONES, ONES], [torch.tensor([0])]),
        ValueError,
        "row_sparse_pull: found 2 keys and, of values, 1",
    ),
    "rows in words": (
        lambda s: s.row_sparse_pull("w", ONES, [0, 1]),
        ValueError,
        "found row_ids list, wanted a tensor of int64 or int32",
    ),
    "op": (lambda s: KVStore(op="mean"), ValueError, "found op 'mean', wanted one of avg, band"),
    "no group": (lambda s: KVStore("dist_sync"), RuntimeError, "found no torch.distributed group"),
    "second init": (lambda s: s.init("w", ONES), ValueError, "key 'w' has a value already"),
    "init, no tensor": (lambda s: s.init("x", 3.0), ValueError, "key 'x': found float, wanted a d"),
    "init, sparse": (
        lambda s: s.init("x", ONES.to_sparse()),
        ValueError,
        "found sparse float32 of shape",
    ),
    "dtype of the operation": (
        lambda s: KVStore(op="band").init("x", ONES),
        ValueError,
        r"key 'x': found float32 of shape \(2, 3\) with op 'band', wanted one of uint8, int8",
    ),
    "push before init": (lambda s: s.push("x", ONES), KeyError, "key 'x' has no value; init gives"),
    "pull before init": (lambda s: s.pull("x", ONES), KeyError, "key 'x' has no value; init gives"),
    "shape": (
        lambda s: s.push("w", [ONES, torch.ones(3)]),
        ValueError,
        r"key 'w', replica 1: found float32 of shape \(3,\), wanted float32 of shape \(2, 3\)",
    ),
    "dtype": (
        lambda s: s.push("w", ONES.double()),
        ValueError,
        "replica 0: found float64 of",
    ),
    "nothing pushed": (lambda s: s.push("w", []), ValueError, "key 'w': found no tensor, wanted"),
    "pull into nothing": (
        lambda s: s.pull("w", None),
        ValueError,
        "found no tensor, wanted flo",
    ),
    "pull into a number": (lambda s: s.pull("w", 3), ValueError, "found int, wanted float32"),
    "no key": (lambda s: s.push([], []), ValueError, "found no key, wanted at least one"),
    "key of another kind": (
        lambda s: s.push(1.5, ONES),
        TypeError,
        "found the key 1.5, wanted",
    ),
    "fewer values": (
        lambda s: s.push(["w", 3], [ONES]),
        ValueError,
        "keys and, of values, 1",
    ),
    "a key twice": (lambda s: s.push(["w", "w"], [ONES] * 2), ValueError, "found a key twice"),
    "replicas": (
        lambda s: s.push(["w", 3], [[ONES, ONES + 1], torch.ones(())]),
        ValueError,
        r"found numbers of replicas \{'w': 2, 3: 1\}, wanted one number",
    ),
    "priorities": (
        lambda s: s.push(["w", 3], [ONES, torch.ones(())], [1]),
        ValueError,
        "found 1 priorities for 2 keys",
    ),
    "rows, out": (
        lambda s: s.row_sparse_pull("w", torch.empty(1, 3), torch.tensor([0, 1])),
        ValueError,
        r"found float32 of shape \(1, 3\) to copy into, wanted float32 of shape \(2, 3\)",
    ),
    "rows, numbers": (
        lambda s: s.row_sparse_pull("w", torch.empty(1, 3), torch.tensor([2])),
        ValueError,
        "found rows 2 to 2, wanted 0 to 1",
    ),
    "rows, dtype": (
        lambda s: s.row_sparse_pull("w", ONES, torch.tensor([0.5])),
        ValueError,
        r"found row_ids float32 of shape \(1,\), wanted a tensor of int64",
    ),
    "rows of a number": (
        lambda s: s.row_sparse_pull(3, torch.ones(1), torch.tensor([0])),
        ValueError,
        "found a value without dimensions",
    ),
}


@pytest.mark.parametrize(("call", "error", "words"), REFUSED.values(), ids=REFUSED)
def test_what_is_refused_and_changes_nothing(store, call, error, words):
    with pytest.raises(error, match=words):
        call(store)
    assert torch.equal(value(store, "w"), torch.zeros(2, 3)) and value(store, 3).item() == 1
    assert torch.equal(ONES, torch.ones(2, 3)) and store.keys() == ["w", 3]
