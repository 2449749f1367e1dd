"""Calls that must be refused: wrong on all ranks or on one, in an ended group, after a fork."""

import atexit
import os
import re
import signal

import pytest
import torch
import torch.distributed as dist
from differing_scenarios import calls_that_differ
from failure_scenarios import backend, in_turn, raised


def coalesced(*tensors, op=dist.ReduceOp.SUM):
    options = dist.AllreduceCoalescedOptions()
    options.reduceOp = op
    backend().allreduce_coalesced(list(tensors), options).wait()


def premul(factor, dtype):
    coalesced(torch.ones(3, dtype=dtype), op=dist._make_nccl_premul_sum(factor))


def root(number, call, options, *tensors):
    options.rootRank = number
    getattr(backend(), call)(*tensors, options).wait()


def gathered_in(lengths):
    """What all ranks have, 3 elements of each, in tensors of such lengths."""
    backend().allgather([[torch.zeros(n) for n in lengths]], [torch.ones(3)]).wait()


def scattered_from(lengths):
    backend().reduce_scatter([torch.zeros(3)], [[torch.ones(n) for n in lengths]]).wait()


# Lengths that do not fit so many ranks.
LENGTHS = {
    "no tensors": lambda size: [],
    "a tensor too few": lambda size: [3] * (size - 1),
    "a tensor too many": lambda size: [3] * (size + 1),
    "a longer tensor": lambda size: [*[3] * (size - 1), 4],
    "a shorter tensor": lambda size: [2, *[3] * (size - 1)],
    "a whole beside a part": lambda size: [3 * size, 3],
    "too short a whole": lambda size: [3 * size - 1],
    "too long a whole": lambda size: [3 * size + 1],
}


def op(name, dtype):
    coalesced(torch.ones(3, dtype=dtype), op=getattr(dist.ReduceOp, name))


WRONG = {
    "sparse": (lambda: coalesced(torch.eye(2).to_sparse()), "layout Sparse; want dense tensors"),
    "elsewhere": (
        lambda: coalesced(torch.ones(3, device="meta")),
        "a tensor is on meta; .*tensors of CPUs and CUDA GPUs",
    ),
    "no tensor": (coalesced, "no tensors; want at least one"),
    "dtypes": (
        lambda: coalesced(torch.ones(3), torch.ones(3, dtype=torch.int32)),
        "dtypes float32 and int32; want one dtype",
    ),
    "average of bools": (
        lambda: op("AVG", torch.bool),
        "op 'avg' is not defined for bool, which takes sum, ",
    ),
    "average of integers that torch does not divide": (
        lambda: op("AVG", torch.uint16),
        "op 'avg' is not defined for uint16, which takes sum, ",
    ),
    "bits of floats": (
        lambda: op("BAND", torch.float32),
        "op 'band' is not defined for float32, which takes sum, avg, ",
    ),
    "product of complex": (
        lambda: op("PRODUCT", torch.complex64),
        "op 'prod' is not defined for complex64, which takes sum, avg",
    ),
    "a dtype without arithmetic": (
        lambda: op("SUM", torch.float8_e8m0fnu),
        r"float8_e8m0fnu is a dtype that cannot be reduced; keep a converted copy and reduce that",
    ),
    "one tensor twice": (
        lambda: coalesced(torch.ones(3), *[torch.ones(3)] * 2),
        r"rank \d, tensor 2 shares memory with rank \d, tensor 1; .* keep a .clone\(\)",
    ),
    "overlapping": (
        lambda: coalesced(*torch.ones(5).unfold(0, 4, 1)),
        r"rank \d, tensor 1 shares memory with rank \d, tensor 0; ",
    ),
    "factor of integers": (
        lambda: premul(2.0, torch.int64),
        "premul_sum of int64 tensors is not defined; want one of float16, float32, float64, bf",
    ),
    "elements of one memory": (
        lambda: coalesced(torch.ones(1).expand(4)),
        r"sizes \[4\] and strides \[0\], which is to be written, has elements that share memory",
    ),
    "no memory": (
        lambda: coalesced(torch._efficientzerotensor((3,))),
        r"a tensor of sizes \[3\] has no memory behind it; keep a .clone\(\)",
    ),
    "root": (
        lambda: root(9, "broadcast", dist.BroadcastOptions(), [torch.ones(3)]),
        "root is 9; want a rank below ",
    ),
    "root below": (
        lambda: root(-1, "broadcast", dist.BroadcastOptions(), [torch.ones(3)]),
        "root is -1; want a rank below ",
    ),
    "root of scatter": (
        lambda: root(9, "scatter", dist.ScatterOptions(), [torch.ones(3)], []),
        "root is 9; want a rank below ",
    ),
    "root of gather": (
        lambda: root(9, "gather", dist.GatherOptions(), [], [torch.ones(3)]),
        "root is 9; want a rank below ",
    ),
    "sent from elsewhere": (
        lambda: backend().send([torch.ones(3, device="meta")], 0, 0),
        "send of a tensor on meta; .* for CPU tensors only",
    ),
    "received elsewhere": (
        lambda: backend().recv([torch.ones(3, device="meta")], 0, 0),
        "recv of a tensor on meta; .* for CPU tensors only",
    ),
    "received elsewhere from anyone": (
        lambda: backend().recv_anysource([torch.ones(3, device="meta")], 0),
        "recv of a tensor on meta; .* for CPU tensors only",
    ),
    "outputs of lists": (
        lambda: backend().allgather([[torch.zeros(3)]] * 2, [torch.ones(3)]),
        "1 inputs and 2 outputs; want as many of both",
    ),
}


def what_is_wrong(rank, size):
    for name, (call, words) in WRONG.items():
        with pytest.raises((ValueError, RuntimeError)) as caught:
            call()
        assert re.search(words, str(caught.value)), f"{name}: {caught.value}"
    for name, lengths_of in LENGTHS.items():
        lengths = lengths_of(size)
        have = f"have {sum(lengths)} elements in {len(lengths)} tensors; want {size} times the 3 of"
        for call, words in (
            (gathered_in, f"outputs {have} the input"),
            (scattered_from, f"inputs {have} the output"),
        ):
            with pytest.raises(ValueError) as caught:
                call(lengths)
            assert words in str(caught.value), f"{name}: {caught.value}"
    all_go_on(size)


def all_go_on(size):
    x = torch.ones(3)
    dist.all_reduce(x)
    assert torch.equal(x, torch.full((3,), float(size)))


def wrong_on_one_rank(rank, size):
    """It raises there; the others hear of the next call, which is another."""
    if rank == 0:
        with pytest.raises(ValueError, match="op 'bor' is not defined for float32"):
            dist.all_reduce(torch.ones(3), dist.ReduceOp.BOR)
        words = raised(dist.barrier)
    else:
        words = raised(lambda: dist.all_reduce(torch.ones(3)))
    assert " is barrier on rank 0 but allreduce (sum) of float32 [3] on rank 1; " in words, words
    all_go_on(size)


def after_destroy(rank, size):
    group = dist.new_group()
    old = backend(group)
    dist.destroy_process_group(group)
    with pytest.raises(RuntimeError, match="this process group was destroyed; make a new one"):
        old.allreduce([torch.ones(3)])
    all_go_on(size)


def after_a_fork(rank, size):
    """The child speaks for nobody, also when it ends, and nobody waits for it."""
    for asynchronous in (False, True):  # with the other thread, too
        if asynchronous:
            dist.all_reduce(torch.ones(1), async_op=True).wait()
            if rank == 0:
                dist.send(torch.ones(1), 1)
            elif rank == 1:
                dist.recv(torch.ones(1), 0)
        child = os.fork()
        if child == 0:
            signal.alarm(60)  # a child that hangs ends
            try:
                words = raised(lambda: dist.all_reduce(torch.ones(3)))
                backend().abort()
                backend().shutdown()
                atexit._run_exitfuncs()
                dist.destroy_process_group()
                os._exit(0 if "made before a fork" in words else 2)
            finally:
                os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        all_go_on(size)


def waits_in_a_fork(rank, size):
    """For what was begun before it: the process that has begun it goes on with it."""
    x, y = torch.zeros(3), torch.ones(3)
    store = dist.distributed_c10d._get_default_store()
    if rank == 0:
        works = [dist.irecv(x, 1), dist.all_reduce(y, async_op=True)]
        child = os.fork()
        if child == 0:
            signal.alarm(60)  # a child that hangs ends
            try:
                said = [raised(work.wait) for work in works]
                os._exit(0 if all("begun before a fork" in words for words in said) else 2)
            finally:
                os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        store.set("waited", "in vain")
        for work in works:
            work.wait()
        assert x.eq(1).all()
    else:
        store.wait(["waited"])
        if rank == 1:
            dist.send(torch.ones(3), 0)
        dist.all_reduce(y)
    assert y.eq(size).all()
    all_go_on(size)


SCENARIOS = [
    *(calls_that_differ, what_is_wrong, wrong_on_one_rank, after_destroy),
    *(after_a_fork, waits_in_a_fork),
]


def run(rank, size):
    in_turn(SCENARIOS, rank, size)
