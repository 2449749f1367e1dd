"""Ranks find those of their own start in a store that earlier ones have used."""

import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
import torch.distributed as dist
from making_scenarios import one_is_killed_while_a_group_is_made, one_tells_no_machine
from processes import in_a_group
from sweeps import one_in
from torch.distributed.distributed_c10d import PrefixStore

from fastreduce.distributed.rendezvous import own_part


def meet(store, size, come=None, timeout_s=20, apart_s=0.0):
    """What each rank that comes finds, or raises; ``size`` may be one for each rank."""

    def part(rank):
        time.sleep(rank * apart_s)
        return own_part(store, rank, sizes[rank], limit)

    sizes = size if isinstance(size, list) else [size] * size
    ranks = range(len(sizes)) if come is None else come
    limit = timedelta(seconds=timeout_s)
    with ThreadPoolExecutor(len(sizes)) as pool:
        found = [pool.submit(part, rank) for rank in ranks]
    return [x.exception() or x.result() for x in found]


@pytest.mark.parametrize("size", [1, 2, 5])
@pytest.mark.parametrize("kind", ["hash", "file", "tcp"])
def test_each_start_has_a_part_of_its_own(kind, size, tmp_path):
    store = {
        "hash": dist.HashStore,
        "file": lambda: dist.FileStore(str(tmp_path / "store")),
        "tcp": lambda: dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False),
    }[kind]()
    for start in ("first", "second", "third"):
        parts = meet(store, size)
        parts[0].set("key", start)
        assert [part.get("key").decode() for part in parts] == [start] * size


@pytest.mark.parametrize("left", [[0], [1], [0, 1], [1, 2]], ids=str)
def test_after_a_start_that_was_broken_off(left):
    """Ranks ``left`` had come, and then all were started again."""
    store = dist.HashStore()
    assert all(isinstance(x, TimeoutError) for x in meet(store, 3, left, timeout_s=0.1))
    parts = meet(store, 3)
    parts[2].set("key", "new")
    assert parts[0].get("key") == parts[1].get("key") == b"new"


@pytest.mark.parametrize(
    ("come", "late"), [([0, 2], "1"), ([2, 0], "1"), ([0], "1, 2"), ([1, 2], "0")]
)
def test_who_has_not_come_is_named(come, late):
    found = meet(dist.HashStore(), 3, come, timeout_s=0.2)
    named = f"the group's ranks {late} have not come within 0:00:00.200000; rank {come[0]} has"
    assert named in str(found[0])


@pytest.mark.parametrize("sizes", [[2, 3], [3, 2], [4, 3, 3], [3, 4, 4], [3, 3, 4]], ids=str)
@pytest.mark.parametrize("apart_s", [0.0, 0.1])
def test_ranks_that_were_told_different_sizes(sizes, apart_s):
    store = dist.HashStore()
    found = meet(store, sizes, apart_s=apart_s)
    told = {x: other for x, other in (sizes[:: len(sizes) - 1], sizes[:: 1 - len(sizes)])}
    for rank in {0, len(sizes) - 1}:
        said = f"rank {rank} was told {sizes[rank]} but another rank {told[sizes[rank]]}"
        assert isinstance(found[rank], ValueError) and said in str(found[rank])
    assert all(isinstance(x, ValueError | PrefixStore) for x in found)
    assert isinstance(meet(store, 3)[0], PrefixStore)


@pytest.mark.parametrize(
    "where", one_in(4, ["machine", "connecting", "inviting", "invited"], "kills")
)
def test_one_is_killed_while_a_group_is_made(tmp_path, where):
    in_a_group(one_is_killed_while_a_group_is_made, (3, where), 3, tmp_path, 2, "gloo", 300)


@pytest.mark.parametrize("word", ["", "a word", "- - -", b"\xff\xfe", "0/2 1/2 2/2 3/2"], ids=repr)
@pytest.mark.parametrize(("key", "rank"), [("hello of 1", 0), ("answer of 1", 0), ("welcome", 1)])
def test_a_store_that_says_something_else(key, word, rank):
    """Whoever waits for the word names the rank that should have said it."""
    store = dist.HashStore()
    store.set(key, word)
    limit = timedelta(seconds=0.1)
    with pytest.raises(TimeoutError, match=f"the group's ranks {1 - rank} have not come within"):
        own_part(store, rank, 2, limit)


def test_a_rank_without_a_machine_is_named(tmp_path):
    in_a_group(one_tells_no_machine, (), 2, tmp_path)
