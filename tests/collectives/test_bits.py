"""The same bits, however a call is cut: by threads, buckets, runs and instruction sets."""

import hashlib
import itertools
from functools import cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import IN_RANK_ORDER, OPS, assert_same, integer_bits, noise, reduced, threads
from subprocesses import output_of, run_python
from sweeps import one_in

from fastreduce import _C, allreduce
from fastreduce.algorithms import names

LOOP_DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.complex64)


def after(tensors, **how):
    copies = [x.clone() for x in tensors]
    allreduce(copies, **how)
    return copies


# Algorithms change fastest, so that the short run meets all of them.
@pytest.mark.parametrize(
    ("dtype", "k", "algorithm"),
    one_in(5, itertools.product(LOOP_DTYPES, (2, 3, 8, 17), ("auto", *names())), "cases"),
)
def test_any_number_of_threads(algorithm, k, dtype):
    tensors = noise(k, (40_003,), dtype)  # in all more than one thread's share
    by_one = after(tensors, algorithm=algorithm)
    for count in (2, 3):
        with threads(count):
            by_many = after(tensors, algorithm=algorithm)
        for one, other in zip(by_one, by_many, strict=True):
            assert_same(one, other)


def flushed(**how):
    """Sums of denormals, in a process whose threads began before they were flushed to zero."""
    if not torch.set_flush_denormal(True):
        pytest.skip("this CPU flushes no denormals")
    torch.set_flush_denormal(False)
    tensors = [torch.full((1 << 19,), 2e-39) for _ in range(4)]
    with threads(2):
        allreduce([x.clone() for x in tensors], async_op=True).wait()
        allreduce([x.clone() for x in tensors])
        torch.set_flush_denormal(True)
        try:
            if work := allreduce(tensors, **how):
                work.wait()
        finally:
            torch.set_flush_denormal(False)
    return [x.view(torch.int32).count_nonzero().item() for x in tensors]


@pytest.mark.parametrize("async_op", [False, True])
def test_all_threads_flush_denormals_where_the_caller_does(async_op):
    assert flushed(async_op=async_op) == [0] * 4


def test_threads_that_flushed_denormals_for_a_call_do_not_for_the_next():
    flushed()
    tensors = [torch.full((1 << 19,), 2e-39) for _ in range(4)]
    with threads(2):
        allreduce(tensors)
        assert all(x.view(torch.int32).ne(0).all() for x in tensors)
        assert tensors[0].add(0).view(torch.int32).ne(0).all()  # nor for torch's own operations


@pytest.mark.parametrize("algorithm", names())
def test_sums_are_in_rank_order_or_not(algorithm):
    tensors = noise(12, (10_000,), torch.float16)
    leader, other = (after(tensors, algorithm=x)[0] for x in ("leader", algorithm))
    if algorithm in IN_RANK_ORDER:
        return assert_same(leader, other)
    with pytest.raises(AssertionError):  # so that comparing bits means something
        assert_same(leader, other)


@pytest.mark.parametrize("k", [63, 64, 65])
@pytest.mark.parametrize("elems", [100, 3000])  # by this thread alone, and by all
def test_any_number_of_sources(k, elems):
    """The pointers of one instruction are on the stack if they are at most 64."""
    tensors = noise(k, (elems,), torch.float32)
    assert_same(after(tensors, algorithm="leader")[-1], reduced("sum", tensors))


@settings(max_examples=40)
@given(
    st.integers(2, 5),
    st.lists(st.integers(0, 9000), min_size=1, max_size=6),
    st.sampled_from(IN_RANK_ORDER),
    st.sampled_from(LOOP_DTYPES),
)
def test_any_bucketing(k, sizes, algorithm, dtype):
    """One list of tensors, one call for each tensor, and all of them as one tensor."""
    whole = noise(k, (sum(sizes),), dtype)
    in_one = after(whole, algorithm=algorithm)
    in_a_list = [list(x.clone().split(sizes)) for x in whole]
    allreduce(in_a_list, algorithm=algorithm)
    one_by_one = [x.clone().split(sizes) for x in whole]
    for tensors in zip(*one_by_one, strict=True):
        allreduce(tensors, algorithm=algorithm)
    for rank in range(k):
        assert_same(torch.cat(in_a_list[rank]), in_one[rank])
        assert_same(torch.cat(one_by_one[rank]), in_one[rank])


@settings(max_examples=40)
@given(st.integers(0, 5000), st.integers(0, 70), st.sampled_from(LOOP_DTYPES))
def test_any_offset(elems, offset, dtype):
    """A slice has the bits that it has within the whole, wherever its vectors begin."""
    whole = noise(3, (offset + elems,), dtype)
    wanted = reduced("sum", whole)[offset:]
    slices = [x[offset:] for x in whole]
    allreduce(slices)
    assert_same(slices[2], wanted)


def digest(call=allreduce):
    """Of all results: each dtype and op, each kernel for a number of ranks, vectors and tails."""
    found = hashlib.sha256()
    for dtype, ops in OPS.items():
        for op in ops:
            for k in (2, 3, 4, 5, 6, 7, 8, 9):
                tensors = noise(k, (397,), dtype, seed=k)
                call(tensors, op)
                found.update(integer_bits(tensors[k - 1]).numpy().tobytes())
    return found.hexdigest()


right_digest = cache(digest)

PRINT_DIGEST = """
    from fastreduce import _C
    from test_bits import digest
    print(_C.cpu_kernels(), digest())
"""


@pytest.mark.parametrize("kernels", one_in(3, ["baseline", "avx2", "avx512"], "cases"))
def test_any_instruction_set(kernels):
    done = run_python(PRINT_DIGEST, FASTREDUCE_CPU=kernels)
    if "cannot run here" in done.stderr:
        pytest.skip(f"this CPU has no {kernels}")
    assert done.stdout.split() == [kernels, right_digest()], done.stderr


def test_control_the_digest_sees_one_bit():
    def with_one_wrong_bit(tensors, op):
        allreduce(tensors, op)
        if (op, len(tensors), tensors[0].dtype) == ("max", 7, torch.float16):
            tensors[-1].view(torch.int16)[396] ^= 1

    assert digest(with_one_wrong_bit) != right_digest()


def test_an_unknown_instruction_set_names_those_of_this_cpu_and_the_best_is_the_default():
    code = """
        import os, torch, fastreduce
        tensors = [torch.ones(3), torch.ones(3)]
        try:
            fastreduce.allreduce(tensors)
        except ValueError as error:
            print(error, tensors[0].tolist())
        del os.environ["FASTREDUCE_CPU"]
        print(fastreduce._C.cpu_kernels())
    """
    said, best = output_of(code, FASTREDUCE_CPU="sse9").splitlines()
    assert said.startswith("FASTREDUCE_CPU=sse9 cannot run here: this CPU has baseline")
    assert said.endswith("[1.0, 1.0, 1.0]")
    flags = torch.backends.cpu.get_cpu_capability()
    assert best == _C.cpu_kernels() == {"AVX512": "avx512", "AVX2": "avx2"}.get(flags, best)
