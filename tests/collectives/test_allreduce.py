"""allreduce: program x op x dtype x number of ranks x shape, bit for bit."""

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import (
    COMPLEX,
    IN_RANK_ORDER,
    OPS,
    assert_all_ranks_hold,
    assert_same,
    noise,
    origin,
    powers,
    reduced,
    threads,
)
from sweeps import one_in

from fastreduce import allreduce
from fastreduce.algorithms import names

ALGORITHMS = ("auto", *names())
RANKS = (1, 2, 3, 4, 5, 8, 9, 17)
# Around one cache line, one vector, one tile (16 KiB) and several tiles on several threads.
SHAPES = ((0,), (), (1,), (7,), (3, 21), (8, 8), (65,), (10, 10, 10), (4097,), (3, 23_333))
PAIRS = [(dtype, op) for dtype, ops in OPS.items() for op in ops]

# Not the full product: each pair of values of any two columns is there.
CASES = [
    (dtype, op, RANKS[j % len(RANKS)], algorithm, SHAPES[(7 * i + i // 10 + 3 * j) % len(SHAPES)])
    for i, (dtype, op) in enumerate(PAIRS)
    for j, algorithm in enumerate(ALGORITHMS[i % 12 :] + ALGORITHMS[: i % 12])
]


def test_the_cases_hold_each_pair_of_columns():
    columns = [(case[0:2], case[2], case[3], case[4]) for case in CASES]
    # The columns (dtype and op) x shape: 74 x 10 pairs are more than the rows.
    for a, b in [(0, 1), (0, 2), (1, 2), (1, 3), (2, 3)]:
        found = {(row[a], row[b]) for row in columns}
        all_a, all_b = {row[a] for row in columns}, {row[b] for row in columns}
        assert found == set(itertools.product(all_a, all_b)), (a, b)


def inputs(algorithm, op, dtype, k, shape):
    """Where sums have an order of their own, only exact data can be compared with the loop."""
    if algorithm not in IN_RANK_ORDER and (dtype.is_floating_point or dtype in COMPLEX):
        if op in ("sum", "avg"):
            return origin(k, shape, dtype)
        if op == "prod":
            return powers(k, shape, dtype)
    return noise(k, shape, dtype, seed=k)


@pytest.mark.parametrize(("dtype", "op", "k", "algorithm", "shape"), one_in(5, CASES, "cases"))
def test_equals_the_loop(dtype, op, k, algorithm, shape):
    tensors = inputs(algorithm, op, dtype, k, shape)
    wanted = reduced(op, tensors)
    with threads(2 if math.prod(shape) > 4096 else 1):
        assert allreduce(tensors, op, algorithm=algorithm) is None
    assert_all_ranks_hold(op, tensors, wanted)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("dtype", one_in(3, [torch.uint8, torch.float32, torch.bfloat16], "cases"))
def test_more_ranks_than_any_table_on_the_stack(dtype, algorithm):
    tensors = origin(70, (130,), dtype)
    wanted = reduced("sum", tensors)
    allreduce(tensors, algorithm=algorithm)
    assert_all_ranks_hold("sum", tensors, wanted)


@pytest.mark.parametrize(
    ("algorithm", "k"),
    one_in(3, itertools.product(sorted({*ALGORITHMS} - {*IN_RANK_ORDER}), RANKS), "cases"),
)
def test_ends_with_the_same_bits_on_all_ranks_and_in_all_runs(algorithm, k):
    dtype = torch.float16 if k % 2 else torch.float32
    first, second = noise(k, (70_001,), dtype), noise(k, (70_001,), dtype)
    with threads(2):
        allreduce(first, algorithm=algorithm)
    allreduce(second, algorithm=algorithm)
    for one, other in zip(first, second, strict=True):
        assert_same(one, first[0])
        assert_same(one, other)


def test_narrow_floats_are_rounded_once():
    """1 + 2**-8 + 2**-8 in bfloat16: rounded after each step it stays 1."""
    tensors = [torch.tensor([x], dtype=torch.bfloat16) for x in (1.0, 2**-8, 2**-8)]
    allreduce(tensors)
    assert tensors[0].item() == 1 + 2**-7


def test_the_average_divides_the_accumulator():
    """The sum overflows float16, the average does not."""
    tensors = [torch.full((3,), 60_000.0, dtype=torch.float16) for _ in range(4)]
    allreduce(tensors, "avg")
    assert tensors[3].tolist() == [60_000.0] * 3


@pytest.mark.parametrize("op", ["min", "max"])
@pytest.mark.parametrize("dtype", [x for x in OPS if x.is_floating_point], ids=str)
@pytest.mark.parametrize("rank", [0, 1, 2])
def test_nan_wins_wherever_it_is(rank, dtype, op):
    tensors = [torch.ones(100).to(dtype) for _ in range(3)]
    tensors[rank].view(-1)[50:51].copy_(torch.tensor([math.nan]))
    allreduce(tensors, op)
    for tensor in tensors:
        assert tensor.float().isnan().nonzero().flatten().tolist() == [50]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize(
    ("dtype", "values", "total"),
    [
        (torch.int8, (127, 1), -128),
        (torch.uint8, (255, 2), 1),
        (torch.int16, (-(2**15), -1), 2**15 - 1),
        (torch.int32, (2**31 - 1, 2**31 - 1), -2),
        (torch.int64, (2**63 - 1, 1), -(2**63)),
        (torch.bool, (True, True), True),
    ],
    ids=str,
)
def test_integers_wrap_as_in_torch(dtype, values, total, algorithm):
    tensors = [torch.full((100,), value, dtype=dtype) for value in values]
    allreduce(tensors, algorithm=algorithm)
    for tensor in tensors:
        assert_same(tensor, torch.full((100,), total, dtype=dtype))


@st.composite
def ranks_of_lists(draw):
    """One list of tensors per rank, tensor i alike on all ranks, dtypes mixed."""
    k = draw(st.integers(1, 6))
    kinds = draw(
        st.lists(
            st.tuples(
                st.lists(st.integers(0, 40), max_size=3),
                st.sampled_from([torch.float32, torch.float16, torch.int16, torch.float64]),
            ),
            max_size=6,
        )
    )
    by_tensor = [noise(k, shape, dtype, seed=i) for i, (shape, dtype) in enumerate(kinds)]
    return [[of_all[rank] for of_all in by_tensor] for rank in range(k)]


@settings(max_examples=60)
@given(
    ranks_of_lists(),
    st.sampled_from(["leader", "sharded", "auto"]),
    st.sampled_from(["sum", "prod", "min", "max"]),
)
def test_any_lists_equal_the_loop(ranks, algorithm, op):
    wanted = [reduced(op, tensors) for tensors in zip(*ranks, strict=True)]
    allreduce(ranks, op, algorithm=algorithm)
    for of_all, total in zip(zip(*ranks, strict=True), wanted, strict=True):
        assert_all_ranks_hold(op, of_all, total)
