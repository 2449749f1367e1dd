"""Calls that differ between ranks: all ranks raise the same, with both sides named, and go on."""

import re

import torch
import torch.distributed as dist
from failure_scenarios import raised

import fastreduce.distributed as fd

SUM = dist.ReduceOp.SUM


def all_reduce(*shape, dtype=torch.float32, op=SUM, empty=torch.empty):
    x = empty(*shape, dtype=dtype).fill_(1)
    try:
        dist.all_reduce(x, op)
    finally:  # nothing is written where the call is refused
        assert torch.equal(x, torch.ones(shape, dtype=dtype))


def all_reduce_list(*shapes):
    dist.all_reduce_coalesced([torch.ones(shape) for shape in shapes])


def scatter():
    dist.scatter(
        torch.ones(1), [torch.ones(1)] * dist.get_world_size() if dist.get_rank() == 0 else None
    )


def reduce_scatter(part):
    dist.reduce_scatter_tensor(torch.ones(part), torch.ones(part * dist.get_world_size()))


# By what differs: the call of the last rank, that of all others, and the error's words for each.
DIFFERENT = {
    "shapes": (lambda: all_reduce(3), lambda: all_reduce(4), "float32 [3]", "float32 [4]"),
    "an average of integers": (
        lambda: all_reduce(3, dtype=torch.int64, op=dist.ReduceOp.AVG),
        lambda: all_reduce(3, dtype=torch.int64),
        "allreduce (avg) of int64 [3]",
        "allreduce (sum) of int64 [3]",
    ),
    "as many elements": (lambda: all_reduce(2, 3), lambda: all_reduce(3, 2), "[2, 3]", "[3, 2]"),
    # Of each pair c10::hash_combine makes the same number.
    "sizes of one hash": (
        *(lambda: all_reduce(2, 65), lambda: all_reduce(1, 2)),
        *("float32 [2, 65]", "float32 [1, 2]"),
    ),
    "sizes of one hash, in shared memory": (
        *(
            lambda: all_reduce(513, 961, empty=fd.empty),
            lambda: all_reduce(512, 900, empty=fd.empty),
        ),
        *("float32 [513, 961]", "float32 [512, 900]"),
    ),
    "programs": (
        lambda: all_reduce(1),
        lambda: all_reduce(90_000),
        "float32 [1]",
        "float32 [90000]",
    ),
    "none": (lambda: all_reduce(0), lambda: all_reduce(3), "float32 [0]", "float32 [3]"),
    "in shared memory": (
        *(lambda: all_reduce(3, empty=fd.empty), lambda: all_reduce(4, empty=fd.empty)),
        *("float32 [3]", "float32 [4]"),
    ),
    "dtypes": (
        *(lambda: all_reduce(3), lambda: all_reduce(3, dtype=torch.int32)),
        *("of float32 [3]", "of int32 [3]"),
    ),
    "operations": (
        *(lambda: all_reduce(3), lambda: all_reduce(3, op=dist.ReduceOp.MAX)),
        *("allreduce (sum)", "allreduce (max)"),
    ),
    "a factor": (
        *(lambda: all_reduce(3), lambda: all_reduce(3, op=dist._make_nccl_premul_sum(2.0))),
        *("(sum)", "(premul_sum)"),
    ),
    "roots": (
        *(lambda: dist.broadcast(torch.ones(3), 0), lambda: dist.broadcast(torch.ones(3), 1)),
        *("broadcast of float32 [3], root 0", "broadcast of float32 [3], root 1"),
    ),
    "lengths of lists": (
        *(lambda: all_reduce_list(3), lambda: all_reduce_list(3, 3)),
        *("allreduce (sum) of float32 [3]", "allreduce (sum) of float32 [3] and 1 more"),
    ),
    "shapes within lists": (
        *(lambda: all_reduce_list((2, 3), (4,)), lambda: all_reduce_list((2,), (3, 4))),
        *("float32 [2, 3] and 1 more", "float32 [2] and 1 more"),
    ),
    "and a barrier": (lambda: all_reduce(3), dist.barrier, "allreduce (sum) of", "barrier"),
    "and a scatter": (lambda: all_reduce(3), scatter, "allreduce (sum) of", "scatter"),
    "and a broadcast": (
        *(lambda: all_reduce(3), lambda: dist.broadcast(torch.ones(3), 0)),
        *("allreduce (sum) of float32 [3]", "broadcast of float32 [3], root 0"),
    ),
    "and a reduce_scatter": (
        *(lambda: all_reduce(3), lambda: reduce_scatter(3)),
        *("allreduce (sum) of float32 [3]", "reduce_scatter (sum) of float32 [3]"),
    ),
    "asynchronous": (
        lambda: dist.all_reduce(torch.ones(3), async_op=True).wait(),
        lambda: dist.all_reduce(torch.ones(4), async_op=True).wait(),
        *("float32 [3]", "float32 [4]"),
    ),
}


def calls_that_differ(rank, size):
    """All raise the same, and go on with the next call."""
    for name, (of_last, of_others, last, others) in DIFFERENT.items():
        words = raised(of_last if rank == size - 1 else of_others)
        sides = f"is .*{re.escape(others)}.* on rank 0 but .*{re.escape(last)}.* on rank {size - 1}"
        wanted = f"{sides}; want the same call on all ranks"
        assert re.search(wanted, words), f"{name}: {words}"
        said = [None] * size
        dist.all_gather_object(said, words.splitlines()[0])
        assert len(set(said)) == 1, f"{name}: {said}"
        x = torch.ones(3)
        dist.all_reduce(x)
        assert torch.equal(x, torch.full((3,), float(size))), name
