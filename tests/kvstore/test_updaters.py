"""Updaters that do more than change the elements of their value: the keys keep their values."""

import pickle

import pytest
import torch
from local_store import ONES, value

from fastreduce import KVStore
from fastreduce.kvstore import UpdaterFailed


def resized(_, update, stored):
    stored.resize_(5)


def turned(_, update, stored):
    stored.t_()


def of_another_dtype(_, update, stored):
    stored.data = stored.double()


def without_memory(_, update, stored):
    stored.untyped_storage().resize_(0)


OTHERS = {
    resized: r"value float32 of shape \(5,\) on cpu .*, wanted float32 of shape \(2, 3\) on cpu",
    turned: r"value float32 of shape \(3, 2\) on cpu",
    of_another_dtype: r"value float64 of shape \(2, 3\) on cpu",
    without_memory: r"value float32 .* \(3, 1\) and 0 bytes, wanted .* \(3, 1\) and 24 bytes",
}


@pytest.mark.parametrize(("updater", "words"), OTHERS.items())
def test_one_that_makes_another_tensor_of_its_value(store, updater, words):
    store.set_updater(updater)
    with pytest.raises(UpdaterFailed, match=f"the updater of key 'w' made its {words}"):
        store.push("w", ONES)
    assert torch.equal(value(store, "w"), torch.zeros(2, 3))
    store.set_updater(lambda key, update, stored: stored.add_(update))
    store.push("w", ONES)
    assert torch.equal(value(store, "w"), ONES)


def test_one_that_pushes_its_own_key(store):
    store.set_updater(lambda key, update, stored: store.push(key, update))
    with pytest.raises(UpdaterFailed, match="found a push of key 'w' by its own updater, which wo"):
        store.push("w", ONES)
    assert torch.equal(value(store, "w"), torch.zeros(2, 3))


def test_two_that_push_each_other():
    store, other = KVStore(), {"a": "b", "b": "a"}
    store.init(["a", "b"], [torch.zeros(1), torch.zeros(1)])
    store.set_updater(lambda key, update, stored: store.push(other[key], update))
    with pytest.raises(UpdaterFailed, match="found a push of key 'a' by its own updater, which wo"):
        store.push("a", torch.ones(1))


def test_one_that_pushes_another_key_is_none_of_them(store):
    """And after that it is still the one of the first key that is under way."""

    def updater(key, update, stored):
        stored.add_(1)
        if key == "w":
            store.push(3, torch.ones(()))
            with pytest.raises(RuntimeError, match="push of key 'w' by its own updater"):
                store.push("w", update)

    store.set_updater(updater)
    for pushes in (1, 2):
        store.push("w", ONES)
        assert value(store, "w")[0, 0] == pushes and value(store, 3) == 1 + pushes


def test_one_that_looks_at_its_own_store(store):
    store.set_updater(lambda key, update, stored: stored.add_(value(store, "w") + 2))
    store.push("w", ONES)
    assert torch.equal(value(store, "w"), torch.full((2, 3), 2.0))


def test_its_error_travels_to_another_process(store):
    store.set_updater(turned)
    with pytest.raises(UpdaterFailed) as caught:
        store.push("w", ONES)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
