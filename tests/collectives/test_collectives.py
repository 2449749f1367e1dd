"""reduce, broadcast, reduce_scatter and all_gather; and what all five calls take."""

import itertools

import pytest
import torch
from reference import OPS, assert_same, noise, origin, reduced, threads
from sweeps import one_in
from torch.distributed import ReduceOp

from fastreduce import all_gather, allreduce, broadcast, reduce, reduce_scatter

RANKS = (1, 2, 3, 5, 8)
SHAPES = ((), (0,), (7,), (4, 33), (3, 7001))
DTYPES = (torch.float32, torch.float16, torch.int64, torch.bool, torch.complex64)
# Dtypes that no kernel can add, but any can be moved.
MOVED = (*OPS, torch.uint16, torch.uint32, torch.uint64, torch.complex32, torch.float8_e4m3fnuz)


def clones(tensors):
    return [x.clone() for x in tensors]


def assert_same_lists(found, wanted):
    for one, other in zip(found, wanted, strict=True):
        assert_same(one, other)


def any_bytes(k, shape, dtype):
    """Each rank's own bytes, as the dtype; booleans hold nothing but 0 and 1."""
    if dtype == torch.bool:
        return noise(k, shape, dtype)
    size = dtype.itemsize
    return [x.view(dtype).reshape(shape) for x in noise(k, (size * _count(shape),), torch.uint8)]


def raw(tensor):
    return tensor.contiguous().reshape(-1).view(torch.uint8)


def _count(shape):
    return torch.Size(shape).numel()


@pytest.mark.parametrize("k", RANKS)
class TestReduce:
    @pytest.mark.parametrize("shape", SHAPES, ids=str)
    @pytest.mark.parametrize("dtype", DTYPES, ids=str)
    def test_the_root_holds_the_sum_and_the_others_what_they_held(self, dtype, shape, k):
        for root in {0, k // 2, k - 1}:
            tensors = noise(k, shape, dtype, seed=root)
            wanted = clones(tensors)
            wanted[root] = reduced("sum", tensors)
            assert reduce(tensors, root) is None
            assert_same_lists(tensors, wanted)

    @pytest.mark.parametrize("op", OPS[torch.float16])
    def test_ops(self, op, k):
        tensors = origin(k, (100,), torch.float16)
        wanted = [*clones(tensors[:-1]), reduced(op, tensors)]
        reduce(tensors, root=k - 1, op=op)
        assert_same_lists(tensors, wanted)


@pytest.mark.parametrize("k", RANKS)
@pytest.mark.parametrize("dtype", MOVED, ids=str)
def test_broadcast_moves_bytes(dtype, k):
    for root in {0, k - 1}:
        tensors = any_bytes(k, (3, 50), dtype)
        wanted = raw(tensors[root]).clone()
        assert broadcast(tensors, root) is None
        for tensor in tensors:
            assert torch.equal(raw(tensor), wanted)


@pytest.mark.parametrize("k", RANKS)
class TestReduceScatter:
    @pytest.mark.parametrize("shape", [(0,), (1,), (7,), (2, 33), (3, 7001)], ids=str)
    @pytest.mark.parametrize("dtype", DTYPES, ids=str)
    def test_rank_r_gets_shard_r_of_the_sum(self, dtype, shape, k):
        tensors = noise(k, (k * shape[0], *shape[1:]), dtype)
        before = clones(tensors)
        outputs = noise(k, shape, dtype, seed=1)  # what they held must not matter
        with threads(2):
            assert reduce_scatter(outputs, tensors) is None
        assert_same_lists(outputs, reduced("sum", before).chunk(k) if shape[0] else outputs)
        assert_same_lists(tensors, before)

    @pytest.mark.parametrize("op", OPS[torch.float32])
    def test_ops(self, op, k):
        tensors = noise(k, (k * 100,), torch.float32)
        outputs = [torch.empty(100) for _ in range(k)]
        reduce_scatter(outputs, tensors, op)
        for one, other in zip(outputs, reduced(op, tensors).chunk(k), strict=True):
            assert_same(one + 0.0, other + 0.0)

    @pytest.mark.parametrize("per_rank", [1, 77, 5000])
    def test_in_place(self, per_rank, k):
        """The output may be the rank's own shard of its input, whose other shards are kept."""
        tensors = noise(k, (k * per_rank,), torch.float32)
        wanted = clones(tensors)
        for rank, shard in enumerate(reduced("sum", tensors).chunk(k)):
            wanted[rank].chunk(k)[rank].copy_(shard)
        reduce_scatter([x.chunk(k)[r] for r, x in enumerate(tensors)], tensors)
        assert_same_lists(tensors, wanted)


class TestAllGather:
    @pytest.mark.parametrize(
        ("dtype", "shape", "k"),
        one_in(3, itertools.product(MOVED, [(0,), (1,), (2, 33), (3, 7001)], RANKS), "cases"),
    )
    def test_everyone_gets_all_one_after_the_other(self, dtype, shape, k):
        tensors = any_bytes(k, shape, dtype)
        before = [raw(x).clone() for x in tensors]
        outputs = any_bytes(k, (k * shape[0], *shape[1:]), dtype)
        assert all_gather(outputs, tensors) is None
        for output in outputs:
            assert torch.equal(raw(output), torch.cat(before))
        for tensor, old in zip(tensors, before, strict=True):
            assert torch.equal(raw(tensor), old)

    @pytest.mark.parametrize("k", RANKS)
    @pytest.mark.parametrize("per_rank", [1, 77, 5000])
    def test_in_place(self, per_rank, k):
        """The input may be the rank's own shard of its output."""
        outputs = noise(k, (k * per_rank,), torch.float32)
        tensors = [x.chunk(k)[r] for r, x in enumerate(outputs)]
        wanted = torch.cat(clones(tensors))
        all_gather(outputs, tensors)
        assert_same_lists(outputs, [wanted] * k)


def test_shapes_may_differ_where_counts_fit():
    outputs = [torch.empty(3, 2) for _ in range(2)]
    tensors = origin(2, (12,), torch.float32)
    reduce_scatter(outputs, tensors)
    assert_same(torch.cat(outputs).reshape(-1), reduced("sum", tensors))


class TestLists:
    """Each call takes one list of tensors per rank, of mixed dtypes and shapes."""

    DTYPES = (torch.float32, torch.int16, torch.float32, torch.float16)
    SHAPES = ((3,), (4, 5), (), (2, 0))

    def lists(self, k, times=1):
        tensors = [
            noise(k, (times, *shape), dtype, seed=i)
            for i, (shape, dtype) in enumerate(zip(self.SHAPES, self.DTYPES, strict=True))
        ]
        return [list(rank) for rank in zip(*tensors, strict=True)]

    def of_all(self, ranks):
        return [list(tensors) for tensors in zip(*ranks, strict=True)]

    @pytest.mark.parametrize("k", [1, 2, 5])
    def test_reduce(self, k):
        ranks = self.lists(k)
        wanted = [clones(rank) for rank in ranks[:-1]]
        wanted.append([reduced("sum", x) for x in self.of_all(ranks)])
        reduce(ranks, root=k - 1)
        for rank, old in zip(ranks, wanted, strict=True):
            assert_same_lists(rank, old)

    @pytest.mark.parametrize("k", [1, 2, 5])
    def test_broadcast(self, k):
        ranks = self.lists(k)
        wanted = clones(ranks[k - 1])
        broadcast(ranks, root=k - 1)
        for rank in ranks:
            assert_same_lists(rank, wanted)

    @pytest.mark.parametrize("k", [1, 2, 5])
    def test_reduce_scatter(self, k):
        ranks, outputs = self.lists(k, times=k), self.lists(k)
        wanted = [reduced("sum", x).chunk(k) for x in self.of_all(ranks)]
        reduce_scatter(outputs, ranks)
        for found, shards in zip(self.of_all(outputs), wanted, strict=True):
            assert_same_lists(found, shards)

    @pytest.mark.parametrize("k", [1, 2, 5])
    def test_all_gather(self, k):
        ranks, outputs = self.lists(k), self.lists(k, times=k)
        wanted = [torch.cat(x) for x in self.of_all(ranks)]
        all_gather(outputs, ranks)
        for rank in outputs:
            assert_same_lists(rank, wanted)

    @pytest.mark.parametrize("wrap", [list, tuple, iter], ids=["list", "tuple", "iterator"])
    def test_any_iterables(self, wrap):
        x = origin(2, (10,), torch.float32)
        wanted = reduced("sum", x)
        allreduce(wrap([wrap([x[0]]), wrap([x[1]])]))
        assert_same_lists(x, [wanted] * 2)
        reduce(wrap(x))
        assert_same(x[0], wanted + wanted)

    @pytest.mark.parametrize("k", [1, 3])
    def test_ranks_without_tensors(self, k):
        assert allreduce([[] for _ in range(k)]) is None
        assert all_gather([[] for _ in range(k)], [() for _ in range(k)]) is None


@pytest.mark.parametrize(
    ("member", "name"),
    [
        (ReduceOp.SUM, "sum"),
        (ReduceOp.AVG, "avg"),
        (ReduceOp.PRODUCT, "prod"),
        (ReduceOp.MIN, "min"),
        (ReduceOp.MAX, "max"),
        (ReduceOp(ReduceOp.SUM), "sum"),  # as torch.distributed keeps them
    ],
)
def test_members_of_torch_distributed_are_ops(member, name):
    tensors = origin(3, (10,), torch.float32)
    wanted = reduced(name, tensors)
    allreduce(tensors, member)
    assert_same_lists(tensors, [wanted] * 3)


@pytest.mark.parametrize("name", ["BAND", "BOR", "BXOR"])
def test_bitwise_members(name):
    tensors = noise(3, (10,), torch.int32)
    wanted = reduced(name.lower(), tensors)
    allreduce(tensors, getattr(ReduceOp, name))
    assert_same_lists(tensors, [wanted] * 3)
