"""Calls that Gloo does and that are refused: they differ between ranks, or are wrong on each."""

import re

import pytest
import torch
import torch.distributed as dist
from failure_scenarios import backend, raised


def ones(*shape, dtype=torch.float32):
    return torch.ones(shape).to(dtype)


def gather(x, root=0, out=None):
    """``out`` are the tensors that the root passes; none of them may be written if it raises."""
    size = dist.get_world_size()
    outs = [torch.zeros_like(x) for _ in range(size)] if out is None else out
    try:
        dist.gather(x, outs if dist.get_rank() == root else None, dst=root)
    except BaseException:
        assert not any(y.to(torch.float64).any() for y in outs)
        raise
    return outs if dist.get_rank() == root else None


def scatter(out, root=0):
    given = [torch.ones_like(out)] * dist.get_world_size()
    try:
        dist.scatter(out, given if dist.get_rank() == root else None, src=root)
    except BaseException:
        assert not out.to(torch.float64).any()
        raise


def all_to_all(elems, dtype=torch.float32, taken=None):
    """One list for both; ``elems`` is how many each rank gets from this one."""
    ranks = range(dist.get_world_size())
    outs = [torch.zeros(elems if taken is None else taken).to(dtype) for _ in ranks]
    try:
        dist.all_to_all(outs, [ones(elems, dtype=dtype) for _ in ranks])
    except BaseException:
        assert not any(out.to(torch.float64).any() for out in outs)
        raise


def all_to_all_single(sent, taken):
    """Rows of two elements, in so many parts as there are ranks."""
    out = torch.zeros(sum(taken), 2)
    try:
        dist.all_to_all_single(out, torch.ones(sum(sent), 2), taken, sent)
    except BaseException:
        assert not out.any()
        raise


def first(number, others):
    """This number for rank 0, and others for all others."""
    return [number, *[others] * (dist.get_world_size() - 1)]


def sparse(*shape, dtype=torch.float32, dense=0):
    x = torch.zeros(shape, dtype=dtype)
    x.view(-1)[dist.get_rank()] = 1
    x = x.to_sparse(len(shape) - dense)
    before = x.to_dense()
    try:
        dist.all_reduce(x)
    except BaseException:
        assert torch.equal(x.to_dense(), before)
        raise
    return x


# By what differs: the call of the last rank, that of all others, and the words for each.
DIFFERENT = {
    "roots of gather": (
        *(lambda: gather(ones(3), 1), lambda: gather(ones(3), 0)),
        *("gather of float32 [3], root 1", "gather of float32 [3], root 0"),
    ),
    "dtypes of gather": (
        *(lambda: gather(ones(3)), lambda: gather(ones(3, dtype=torch.float8_e5m2))),
        *("gather of float32 [3], root 0", "gather of float8_e5m2 [3], root 0"),
    ),
    "dtypes of one length": (
        *(lambda: gather(ones(4, dtype=torch.int32)), lambda: gather(ones(4))),
        *("gather of int32 [4], root 0", "gather of float32 [4], root 0"),
    ),
    "lengths of gather": (
        *(lambda: gather(ones(3)), lambda: gather(ones(4))),
        *("gather of float32 [3], root 0", "gather of float32 [4], root 0"),
    ),
    "roots of scatter": (
        *(lambda: scatter(torch.zeros(3), 1), lambda: scatter(torch.zeros(3), 0)),
        *("scatter of float32 [3], root 1", "scatter of float32 [3], root 0"),
    ),
    "dtypes of scatter": (
        *(lambda: scatter(torch.zeros(3)), lambda: scatter(torch.zeros(3).to(torch.uint16))),
        *("scatter of float32 [3], root 0", "scatter of uint16 [3], root 0"),
    ),
    "lengths of scatter": (
        *(lambda: scatter(torch.zeros(3)), lambda: scatter(torch.zeros(0))),
        *("scatter of float32 [3], root 0", "scatter of float32 [0], root 0"),
    ),
    "gather and scatter": (
        *(lambda: gather(ones(3)), lambda: scatter(torch.zeros(3))),
        *("gather of float32 [3], root 0", "scatter of float32 [3], root 0"),
    ),
    "dtypes of all_to_all": (
        *(lambda: all_to_all(3), lambda: all_to_all(3, torch.bfloat16)),
        *("all_to_all of float32", "all_to_all of bfloat16"),
    ),
    "shapes of sparse tensors": (
        *(lambda: sparse(8, 2), lambda: sparse(9, 2)),
        *("sparse all_reduce of float32 [8, 2]", "sparse all_reduce of float32 [9, 2]"),
    ),
    "dtypes of sparse tensors": (
        *(lambda: sparse(8), lambda: sparse(8, dtype=torch.int64)),
        *("sparse all_reduce of float32 [8]", "sparse all_reduce of int64 [8]"),
    ),
    "sparse dimensions": (
        *(lambda: sparse(8, 2), lambda: sparse(8, 2, dense=1)),
        *("[8, 2], sparse dimensions: 2", "[8, 2], sparse dimensions: 1"),
    ),
    "sparse and dense": (
        *(lambda: sparse(8), lambda: dist.all_reduce(torch.ones(8))),
        *("sparse all_reduce of float32 [8]", "allreduce (sum) of float32 [8]"),
    ),
}

# The call of the last rank, that of all others, and the words after "rank 0 sends".
LENGTHS = {
    "lists": (
        lambda: all_to_all(3),
        lambda: all_to_all(4),
        "4 elements to rank {0}, which takes 3",
    ),
    "one tensor": (
        lambda: all_to_all_single(first(1, 2), first(3, 2)),
        lambda: all_to_all_single(first(2, 2), first(2, 2)),
        "4 elements to rank {0}, which takes 6",
    ),
    "a list and one tensor": (
        lambda: all_to_all(5),
        lambda: all_to_all_single(first(2, 2), first(2, 2)),
        "4 elements to rank {0}, which takes 5",
    ),
    "nothing": (lambda: all_to_all(1, taken=0), lambda: all_to_all(1), "1 elements to rank {0}, w"),
}


def all_go_on(size):
    x = torch.ones(3)
    dist.all_reduce(x)
    assert torch.equal(x, torch.full((3,), float(size)))
    outs = gather(ones(2))
    assert outs is None or all(torch.equal(y, torch.ones(2)) for y in outs)


def calls_that_differ(rank, size):
    """All ranks raise the same words, which name both sides, write nothing, and go on."""
    cases = {
        name: (
            last,
            others,
            f" is .*{re.escape(b)}.* on rank 0 but .*{re.escape(a)}.* on rank {{0}}; ",
        )
        for name, (last, others, a, b) in DIFFERENT.items()
    } | {
        name: (last, others, f": rank 0 sends {words}.* from it; want the same number on both")
        for name, (last, others, words) in LENGTHS.items()
    }
    for name, (of_last, of_others, wanted) in cases.items():
        words = raised(of_last if rank == size - 1 else of_others).splitlines()[0]
        assert re.search(wanted.format(size - 1), words), f"{name}: {words}"
        said = [None] * size
        dist.all_gather_object(said, words)
        assert len(set(said)) == 1, f"{name}: {said}"
        all_go_on(size)


def lists(*lengths):
    return [torch.zeros(n) for n in lengths]


def gathered(root, *lengths, inputs=(3,)):
    options = dist.GatherOptions()
    options.rootRank = root
    backend().gather([lists(*lengths)] if lengths else [], lists(*inputs), options)


def scattered(root, *lengths, outputs=(3,)):
    options = dist.ScatterOptions()
    options.rootRank = root
    backend().scatter(lists(*outputs), [lists(*lengths)] if lengths else [], options)


def single(sent, taken):
    backend().alltoall_base(torch.zeros(4), torch.ones(4), taken, sent)


def received(x):
    backend().recv([x], 0, 0)


WRONG = {
    "root": (lambda rank, size: gathered(size), "root is .; want a rank below "),
    "outputs too few": (
        lambda rank, size: gathered(rank, *[3] * (size - 1)),
        r"gather has \d+ elements in . outputs on its root; want . tensors of 3 elements",
    ),
    "outputs too long": (
        lambda rank, size: gathered(rank, *[4] * size),
        "outputs on its root; want . tensors of 3 elements",
    ),
    "outputs elsewhere": (
        lambda rank, size: gathered((rank + 1) % size, *[3] * size),
        "outputs on another rank than its root; want 0 tensors",
    ),
    "two inputs": (
        lambda rank, size: gathered(rank, *[3] * size, inputs=(3, 3)),
        "gather has 2 inputs; want one",
    ),
    "scattered to two": (
        lambda rank, size: scattered(rank, *[3] * size, outputs=(3, 3)),
        "scatter has 2 outputs; want one",
    ),
    "inputs too few": (
        lambda rank, size: scattered(rank, *[3] * (size - 1)),
        r"scatter has \d+ elements in . inputs on its root",
    ),
    "dtypes": (
        lambda rank, size: backend().alltoall(
            lists(*[1] * size), [torch.ones(1, dtype=torch.int32)] * size
        ),
        "tensors have dtypes int32 and float32; want one dtype",
    ),
    "too few lists": (
        lambda rank, size: backend().alltoall(lists(1), lists(1)),
        "all_to_all has 1 inputs and 1 outputs; want one of each for each of the . ranks",
    ),
    "uneven": (
        lambda rank, size: dist.all_to_all_single(torch.zeros(size + 1), torch.ones(size + 1)),
        "the input of all_to_all has . rows for . ranks; want as many for each, or input_split_",
    ),
    "sums of splits": (
        lambda rank, size: single([4, *[0] * (size - 1)], [1] * size * 2),
        "output_split_sizes of all_to_all are .*; want . numbers that sum to the 4 rows",
    ),
    "splits below nothing": (
        lambda rank, size: single([5, -1, *[0] * (size - 2)], []),
        r"input_split_sizes of all_to_all are \[5, -1",
    ),
    "no rows": (
        lambda rank, size: backend().alltoall_base(torch.zeros(()), torch.ones(()), [], []),
        "the input of all_to_all has no dimension; want one that is cut",
    ),
    "maximum of sparse tensors": (
        lambda rank, size: dist.all_reduce(torch.eye(2).to_sparse(), dist.ReduceOp.MAX),
        r"a reduction of sparse tensors other than the sum is not defined; keep a .to_dense",
    ),
    "sparse uint16": (
        lambda rank, size: dist.all_reduce(
            torch.sparse_coo_tensor([[0]], torch.ones(1).to(torch.uint16), (2,))
        ),
        "sparse all_reduce of uint16 tensors: torch does not add them; keep a .float",
    ),
    "strided": (
        lambda rank, size: received(torch.ones(4)[::2]),
        r"recv into a tensor of sizes \[2\] and strides \[2\], which Gloo cannot write .* contigu",
    ),
    "outputs of one memory": (
        lambda rank, size: dist.all_to_all_single(torch.ones(1).expand(size), torch.ones(size)),
        "which is to be written, has elements that share memory",
    ),
}


def what_is_wrong(rank, size):
    """It raises on the rank before the others hear of it."""
    for name, (call, words) in WRONG.items():
        with pytest.raises((ValueError, RuntimeError)) as caught:
            call(rank, size)
        assert re.search(words, str(caught.value)), f"{name}: {caught.value}"
    all_go_on(size)
