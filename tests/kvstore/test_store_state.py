"""A store's state: kept, put back, and as it was where an update fails."""

import copy
import pickle

import pytest
import torch

from fastreduce import KVStore
from fastreduce.kvstore import UpdaterFailed
from fastreduce.training import load, save


def adam():
    store = KVStore()
    store.set_optimizer(torch.optim.Adam, lr=0.1)
    store.init(["w", 7], [torch.zeros(4), torch.ones(2)])
    return store


def test_a_checkpoint_has_values_and_optimizers(tmp_path):
    one, other = adam(), adam()
    one.push("w", torch.arange(4.0))
    save(tmp_path, {"store": one}, step=1)
    load(tmp_path, {"store": other})
    for store in (one, other):
        store.push(["w", 7], [torch.ones(4), torch.ones(2)])
    for key, shape in (("w", 4), (7, 2)):
        one.pull(key, wanted := torch.empty(shape))
        other.pull(key, found := torch.empty(shape))
        assert torch.equal(found, wanted)


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickle.dumps])
def test_copies_are_refused(copied):
    with pytest.raises(TypeError, match=r"^KVStore: a store cannot be copied .* its state_dict"):
        copied(adam())


def test_a_checkpoint_of_another_store_is_refused():
    store, state = KVStore(), adam().state_dict()
    store.init(["w", 3], [torch.zeros(2, 3), torch.ones(())])
    with pytest.raises(ValueError, match=r"found rows of 'w': float32 of shape \(4,\), wanted f"):
        store.load_state_dict(state)
    one = adam()
    one.push("w", torch.ones(4))
    with pytest.raises(ValueError, match="state of a store of 2 ranks, wanted 1; begin"):
        one.load_state_dict({**one.state_dict(), "ranks": 2})


@pytest.mark.parametrize(
    ("prepare", "words"),
    [
        (lambda store: None, "found the state of Adam, wanted that of no optimizer; call"),
        (lambda store: store.set_updater(max), "found the state of Adam, wanted that of no opt"),
        (lambda store: store.set_optimizer(torch.optim.SGD), "Adam, wanted that of SGD; call set"),
    ],
)
def test_the_state_of_another_optimizer_is_refused(prepare, words):
    one, other = adam(), KVStore()
    other.init(["w", 7], [torch.zeros(4), torch.ones(2)])
    prepare(other)
    one.push("w", torch.ones(4))
    with pytest.raises(ValueError, match=words):
        other.load_state_dict(one.state_dict())
    other.pull("w", out := torch.ones(4))
    assert torch.equal(out, torch.zeros(4))


def test_a_state_can_be_put_back_again_and_again():
    store = adam()
    store.push("w", torch.ones(4))
    state, found = store.state_dict(), []
    for _ in range(3):
        store.load_state_dict(state)
        store.pushpull("w", torch.ones(4), out=(out := torch.empty(4)))
        found.append(out)
    assert torch.equal(found[0], found[1]) and torch.equal(found[1], found[2])


def test_keys_that_look_alike_in_a_file(tmp_path):
    one, other = KVStore(), KVStore()
    for store in (one, other):
        store.init([1, "1"], [torch.zeros(2), torch.zeros(2)])
    one.push([1, "1"], [torch.full((2,), 1.0), torch.full((2,), 2.0)])
    save(tmp_path, {"store": one}, step=1)
    load(tmp_path, {"store": other})
    other.pull([1, "1"], outs := [torch.empty(2), torch.empty(2)])
    assert [x[0].item() for x in outs] == [1, 2]


def test_an_optimizer_that_raises_leaves_all_optimizers_as_they_were(monkeypatch):
    store, other = adam(), adam()
    for x in (store, other):
        x.push(["w", 7], [torch.ones(4), torch.ones(2)])
    step = torch.optim.Adam.step

    def failing(optimizer):
        if optimizer.param_groups[0]["params"][0].shape == (2,):
            raise ZeroDivisionError("no")
        step(optimizer)

    with monkeypatch.context() as patch:
        patch.setattr(torch.optim.Adam, "step", failing)
        with pytest.raises(UpdaterFailed, match="key 7 raised ZeroDivisionError: no"):
            store.push(["w", 7], [torch.ones(4), torch.ones(2)])
    for x in (store, other):
        x.push("w", torch.ones(4))
        x.pull("w", out := torch.empty(4))
        x.found = out
    assert torch.equal(store.found, other.found)


def test_a_state_that_breaks_while_it_is_put_back_changes_nothing():
    store, other = adam(), adam()
    for x in (store, other):
        x.push(["w", 7], [torch.ones(4), torch.ones(2)])
    broken = store.state_dict()
    broken["values"] = {key: x + 1 for key, x in broken["values"].items()}
    broken["optimizers"][7] = {"state": {}, "param_groups": []}
    with pytest.raises(ValueError, match="different number of parameter groups"):
        store.load_state_dict(broken)
    outs = []
    for x in (store, other):
        x.push(["w", 7], [torch.ones(4), torch.ones(2)])
        x.pull(["w", 7], out := [torch.empty(4), torch.empty(2)])
        outs += out
    assert torch.equal(outs[0], outs[2]) and torch.equal(outs[1], outs[3])
