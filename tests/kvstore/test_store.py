"""`KVStore("local")`: what is pushed, updated and pulled."""

import pytest
import torch
from local_store import ONES, value
from reference import OPS
from torch import nn

import fastreduce
from fastreduce import KVStore


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

    def test_first_values_that_are_views_of_others(self):
        x, store = torch.tensor([1 + 2j, 3 - 4j]), KVStore()
        store.init(["conjugate", "negative"], [x.conj(), x.conj().imag])
        outs = [torch.empty(2, dtype=torch.complex64), torch.empty(2)]
        store.pull(["conjugate", "negative"], outs)
        assert outs[0].tolist() == [1 - 2j, 3 + 4j] and outs[1].tolist() == [-2, 4]

    @pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental:UserWarning")
    @pytest.mark.parametrize("numbers", [[3, 0, 3], [1]])  # of one element torch makes a fill
    @pytest.mark.parametrize("columns", [3, 1])
    @pytest.mark.parametrize("dtype", OPS)
    def test_rows(self, dtype, columns, numbers):
        values = torch.arange(4 * columns).reshape(4, columns)
        store, table = KVStore(op=OPS[dtype][0]), values.to(dtype)
        store.init("t", table)
        out = torch.zeros(columns, len(numbers), dtype=dtype).t()
        store.row_sparse_pull("t", out, torch.tensor(numbers))
        assert torch.equal(out.to(torch.complex64), table[numbers].to(torch.complex64))

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


@pytest.mark.parametrize(
    ("dtype", "scale"),
    [(torch.float16, 60000), (torch.bfloat16, 1), (torch.float8_e5m2, 40000), (torch.float64, 1)],
)
def test_an_average_has_the_bits_of_an_allreduce(dtype, scale):
    """Of large values, the sum of which is none of this dtype, too."""
    values = [(scale * torch.rand(100)).to(dtype) for _ in range(3)]
    wanted = [x.clone() for x in values]
    fastreduce.allreduce(wanted, "avg")
    store = KVStore(op="avg")
    store.init("x", torch.zeros(100, dtype=dtype))
    store.pushpull("x", values, out := torch.empty(100, dtype=dtype))
    assert torch.equal(out.view(torch.uint8), wanted[0].view(torch.uint8))


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
def test_an_average_of_complex_numbers_has_the_bits_of_an_allreduce(dtype):
    values = [torch.randn(100, dtype=dtype) for _ in range(3)]
    values[0][0] = complex(1, float("inf"))
    wanted = [x.clone() for x in values]
    fastreduce.allreduce(wanted, "avg")
    store = KVStore(op="avg")
    store.init("x", torch.zeros(100, dtype=dtype))
    store.pushpull("x", values, out := torch.empty(100, dtype=dtype))
    assert torch.equal(out, wanted[0])


@pytest.mark.filterwarnings("ignore:ComplexHalf")
def test_an_average_of_narrow_complex_numbers_is_rounded_once():
    values = [torch.tensor([60000 + 3j], dtype=torch.complex32) for _ in range(2)]
    store = KVStore(op="avg")
    store.init("x", values[0])
    store.pushpull("x", values, out := torch.zeros(1, dtype=torch.complex32))
    assert out.tolist() == [60000 + 3j]


@pytest.mark.parametrize(
    ("optimizer", "wanted"), [(None, 1.0), ({}, 2 - 3), ({"momentum": 0.5}, 2 - (1 + 1.5 + 1.75))]
)
def test_what_is_made_in_inference_mode_can_be_changed_outside(optimizer, wanted):
    store = KVStore()
    if optimizer is not None:
        store.set_optimizer(torch.optim.SGD, lr=1, **optimizer)
    with torch.inference_mode():
        store.init("x", torch.full((3,), 2.0))
        store.push("x", torch.ones(3))
    for _ in range(2):
        store.push("x", torch.ones(3))
    store.pull("x", out := torch.empty(3))
    assert out.tolist() == [wanted] * 3


def test_an_updater_may_change_its_update_in_inference_mode(store):
    store.set_updater(lambda key, update, stored: stored.add_(update.mul_(2)))
    with torch.inference_mode():
        store.push("w", torch.ones(2, 3))
        store.push("w", [torch.ones(2, 3)] * 2)
    assert torch.equal(value(store, "w"), torch.full((2, 3), 6.0))


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


def test_keys_that_share_memory():
    """In every replica: one tensor for two keys, parts of one, and one that overlaps itself."""
    store, other = KVStore(), torch.full((3, 3), 2.0)
    flat = torch.arange(12.0)
    values = [other, flat[:9].view(3, 3), flat[3:].view(3, 3), flat.unfold(0, 3, 1)[:3]]
    keys = ["twice", "once more", "first", "last", "overlaps itself"]
    store.init(keys, [torch.zeros(3, 3)] * 5)
    store.push(keys, [[x, x, x] for x in (other, *values)])
    store.pull(keys, outs := [torch.empty(3, 3) for _ in keys])
    for out, pushed in zip(outs, (other, *values), strict=True):
        assert torch.equal(out, 3 * pushed)
