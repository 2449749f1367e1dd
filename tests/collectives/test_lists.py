"""One call over lists is one call for each tensor, whatever lies beside it; and "auto" is asked for
the whole list."""

import itertools

import pytest
import torch
from reference import OPS, assert_same, noise

from fastreduce import _C, all_gather, allreduce, broadcast, reduce, reduce_scatter
from fastreduce.plan import build

K = 3
# Every dtype that an operation takes, and all of them for what only moves. Some share a kernel:
# complex numbers with their parts, integers of all sizes where the operation is bitwise, booleans.
DTYPES = {op: [x for x, ops in OPS.items() if op in ops] for op in sorted(_C.ops())}
CALLS = {
    **{f"allreduce, {op}": lambda x, y, op=op: allreduce(x, op) for op in DTYPES},
    **{f"reduce, {op}": lambda x, y, op=op: reduce(x, 1, op) for op in DTYPES},
    **{f"reduce_scatter, {op}": lambda x, y, op=op: reduce_scatter(x, y, op) for op in DTYPES},
    "broadcast, any": lambda x, y: broadcast(x, 1),
    "all_gather, any": lambda x, y: all_gather(y, x),
}


def lists_of(dtypes, times=1):
    """Lengths differ, so that a tensor that is taken for its neighbour shows."""
    of_all = [noise(K, (times * (7 + i),), dtype, seed=i) for i, dtype in enumerate(dtypes)]
    return [list(rank) for rank in zip(*of_all, strict=True)]


@pytest.mark.parametrize("order", [1, -1], ids=["", "the other way round"])
@pytest.mark.parametrize("name", CALLS)
def test_dtypes_beside_each_other(name, order):
    dtypes = DTYPES.get(name.split(", ")[1], list(OPS))[::order] * 2
    short, long = lists_of(dtypes), lists_of(dtypes, times=K)
    alone = [[[x.clone() for x in rank] for rank in ranks] for ranks in (short, long)]
    CALLS[name](short, long)
    for i in range(len(dtypes)):
        CALLS[name]([rank[i] for rank in alone[0]], [rank[i] for rank in alone[1]])
    for found, wanted in zip((short, long), alone, strict=True):
        for one, other in zip(itertools.chain(*found), itertools.chain(*wanted), strict=True):
            assert_same(one, other)


@pytest.fixture
def asked(monkeypatch):
    """The questions that are put to Python: collective, algorithm, ranks, root, place, bytes."""
    questions, build_it = [], build.build
    monkeypatch.setattr(build, "build", lambda *q: questions.append(q) or build_it(*q))
    _C.forget_schedules()
    yield questions
    _C.forget_schedules()


def ranks(k, *elems, dtype=torch.float32):
    return [[torch.ones(n, dtype=dtype) for n in elems] for _ in range(k)]


f16, f64 = torch.float16, torch.float64
# By what a rank has: the bytes that "auto" is asked about, the next power of two.
SIZES = {
    "one tensor": (ranks(2, 300), 2048),
    "a power of two": (ranks(2, 256), 1024),
    "one element more": (ranks(2, 257), 2048),
    "one element less": (ranks(2, 255), 1024),
    "two tensors, summed": (ranks(2, 300, 300), 4096),
    "two tensors that make a power of two": (ranks(2, 200, 56), 1024),
    "and one element more": (ranks(2, 200, 57), 2048),
    "the last is the largest": (ranks(2, 1, 1, 5000), 32768),
    "empty ones beside": (ranks(2, 0, 300, 0), 2048),
    "of one rank, however many there are": (ranks(5, 300), 2048),
    "bytes and not elements": (ranks(2, 300, dtype=f64), 4096),
    "of each tensor's own dtype": (
        [[torch.ones(300), torch.ones(300, dtype=f16)] for _ in range(2)], 2048),
    "elements and not memory": ([[torch.ones(600)[::2]] for _ in range(2)], 2048),
    "nothing": (ranks(2, 0), 1),
    "no tensors": ([[], []], 1),
}  # fmt: skip


@pytest.mark.parametrize("name", SIZES)
def test_auto_is_asked_for_the_bytes_of_a_rank(name, asked):
    tensors, nbytes = SIZES[name]
    allreduce(tensors)
    assert asked == [("allreduce", "auto", len(tensors), 0, "cpu", nbytes, "")]


@pytest.mark.parametrize(
    "call",
    [
        lambda: allreduce(ranks(2, 300), algorithm="sharded"),
        lambda: reduce(ranks(2, 300)),
        lambda: broadcast(ranks(2, 300)),
        lambda: reduce_scatter(ranks(2, 300), ranks(2, 600)),
        lambda: all_gather(ranks(2, 600), ranks(2, 300)),
    ],
)
def test_nobody_else_is_asked_for_bytes(call, asked):
    call()
    assert [question[4:] for question in asked] == [("", 0, "")]


# What follows a call of two ranks with 600 floats in two tensors; whether its program serves.
LATER = {
    "the same": (lambda: allreduce(ranks(2, 300, 300)), True),
    "in one tensor": (lambda: allreduce(ranks(2, 600)), True),
    "in more tensors": (lambda: allreduce(ranks(2, *[100] * 6)), True),
    "the same size class": (lambda: allreduce(ranks(2, 1024)), True),
    "other dtypes of the same size class": (lambda: allreduce(ranks(2, 400, dtype=f64)), True),
    "another operation": (lambda: allreduce(ranks(2, 600), "max"), True),
    "a larger size class, by one tensor more": (lambda: allreduce(ranks(2, 300, 300, 425)), False),
    "a smaller size class, by one tensor less": (lambda: allreduce(ranks(2, 300)), False),
    "the first tensor alike": (lambda: allreduce(ranks(2, 300, 3000)), False),
    "the last tensor alike": (lambda: allreduce(ranks(2, 3000, 300)), False),
    "another number of ranks": (lambda: allreduce(ranks(3, 300, 300)), False),
    "an algorithm by name": (lambda: allreduce(ranks(2, 300, 300), algorithm="leader"), False),
    "another collective": (lambda: reduce(ranks(2, 300, 300)), False),
}


@pytest.mark.parametrize("name", LATER)
def test_a_program_is_kept_for_its_size_class(name, asked):
    call, serves = LATER[name]
    allreduce(ranks(2, 300, 300))
    call()
    call()
    assert len(asked) == (1 if serves else 2)


def test_a_program_is_kept_for_its_root(asked):
    for root in (0, 1, 1, 0, 2):
        tensors = [torch.full((3,), 10.0**rank) for rank in range(3)]
        reduce(tensors, root=root)
        assert [x.tolist() == [111.0] * 3 for x in tensors] == [r == root for r in range(3)]
    assert [question[3] for question in asked] == [0, 1, 2]


def test_each_size_class_has_its_own_choice(monkeypatch):
    """By their bits: tree and leader sum in different orders."""
    monkeypatch.setattr(build, "choose", lambda place, k, n, *_: "tree" if n > 4096 else "leader")
    _C.forget_schedules()
    for elems in [(200, 100), (2000, 100), (200, 100), (100, 2000)]:
        of_all = [noise(4, (n,), torch.float32) for n in elems]
        tensors = [list(rank) for rank in zip(*of_all, strict=True)]
        by_name = [[x.clone() for x in rank] for rank in tensors]
        other = [[x.clone() for x in rank] for rank in tensors]
        name, unwanted = ("tree", "leader")[:: 1 if sum(elems) > 1024 else -1]
        allreduce(tensors)
        allreduce(by_name, algorithm=name)
        allreduce(other, algorithm=unwanted)
        for one, wanted in zip(tensors[0], by_name[0], strict=True):
            assert_same(one, wanted)
        with pytest.raises(AssertionError):
            for one, wrong in zip(tensors[0], other[0], strict=True):
                assert_same(one, wrong)
    _C.forget_schedules()
