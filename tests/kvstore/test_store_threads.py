"""`KVStore("local")`, called from several threads."""

import sys
import threading

import pytest
import torch
from local_store import ONES, value

from fastreduce import KVStore


@pytest.fixture
def often():
    """Threads take turns as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def together(*functions):
    """What is raised, by each function in a thread of its own."""
    raised = [None] * len(functions)

    def run(i):
        try:
            functions[i]()
        except Exception as error:
            raised[i] = error

    threads = [threading.Thread(target=run, args=(i,)) for i in range(len(functions))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return raised


def test_one_of_two_gives_a_key_its_value(monkeypatch):
    """Where both have seen that it has none."""
    store, seen = KVStore(), threading.Barrier(2)
    with monkeypatch.context() as patch:
        patch.setattr(store._peers, "agree", lambda *_: seen.wait(20))
        inits = [lambda x=x: store.init("x", torch.tensor(x)) for x in (1.0, 2.0)]
        raised = together(*inits)
    assert sorted(map(str, raised)) == [
        "None",
        "init: key 'x' has a value already; push changes it",
    ]
    store.pull("x", out := torch.empty(()))
    assert out.item() == 1 + raised.index(None)


def test_calls_beside_first_values(often):
    store, done = KVStore(), threading.Event()

    def init():
        try:
            for i in range(1000):
                store.init(i, torch.zeros(1))
        finally:
            done.set()

    def push():
        while not done.is_set():
            with pytest.raises(KeyError, match="push: key 'w' has no value"):
                store.push("w", ONES)

    def keep():
        while not done.is_set():
            store.state_dict()

    assert together(init, push, keep) == [None] * 3


def test_an_optimizer_that_is_set_beside_a_push_is_the_one_of_the_next(store):
    pushing, is_set = threading.Event(), threading.Event()

    class Slow(torch.optim.SGD):
        def __init__(self, *given, **settings):
            super().__init__(*given, **settings)
            pushing.set()
            is_set.wait(0.2)  # set_optimizer comes meanwhile, if it does not wait

    store.set_optimizer(Slow, lr=1)
    pushing.clear()

    def set_another():
        pushing.wait()
        store.set_optimizer(torch.optim.SGD, lr=10)
        is_set.set()

    assert together(lambda: store.push("w", ONES), set_another) == [None, None]
    store.push("w", ONES)
    assert torch.equal(value(store, "w"), -11 * ONES)


def test_a_pull_beside_a_push_sees_no_half_of_it(store):
    begun, pulling = threading.Event(), threading.Event()

    def updater(key, update, stored):
        stored[0] += 1
        begun.set()
        pulling.wait(0.2)  # a pull that does not wait comes meanwhile
        stored[1] += 1

    def pull():
        begun.wait()
        found = value(store, "w")
        store.row_sparse_pull("w", out := torch.zeros(2, 3), torch.tensor([1, 0]))
        pulling.set()
        assert torch.equal(found, ONES) and torch.equal(out, ONES)

    store.set_updater(updater)
    assert together(lambda: store.push("w", ONES), pull) == [None, None]
