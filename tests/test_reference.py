"""The checkers check: each accepts what is right and refuses what is wrong."""

import math

import pytest
import torch
from reference import (
    OPS,
    assert_all_ranks_hold,
    assert_all_same,
    assert_same,
    noise,
    origin,
    reduced,
)

import fastreduce


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (torch.tensor(0.0), torch.tensor(-0.0)),
        (torch.tensor(1.0), torch.tensor(1.0 + 2**-23)),
        (torch.tensor(math.nan), torch.tensor(math.inf)),
        (torch.tensor([1]), torch.tensor([1.0])),
        (torch.tensor([1]), torch.tensor(1)),
        (torch.tensor(1 + 1j), torch.tensor(1 - 1j)),
    ],
)
def test_one_bit_of_difference_shows(one, other):
    assert_same(one, one.clone())
    with pytest.raises(AssertionError):
        assert_same(one, other)


def test_a_rank_left_behind_shows():
    left_behind = [torch.ones(3), torch.zeros(3)]
    with pytest.raises(AssertionError):
        assert_all_ranks_hold("sum", left_behind, torch.ones(3))
    with pytest.raises(AssertionError):
        assert_all_same(left_behind, [torch.ones(3)] * 2)


@pytest.mark.parametrize("dtype", OPS, ids=str)
@pytest.mark.parametrize("k", [2, 8, 17])
def test_origin_sums_are_exact_in_any_order_and_notice_a_missing_rank(k, dtype):
    tensors = origin(k, (1000,), dtype)
    wanted = reduced("sum", tensors)
    assert_same(reduced("sum", tensors[::-1]), wanted)
    if dtype not in (torch.bool, *(x for x in OPS if x.is_complex)):
        exact = sum(x.double() for x in tensors)
        assert_same(wanted.double(), exact)
    for rank in range(k):
        others = [x.to(torch.complex128) for x in tensors[:rank] + tensors[rank + 1 :]]
        assert not torch.equal(sum(others), wanted.to(torch.complex128))


def test_noise_shows_the_order_of_summing():
    tensors = noise(4, (1000,), torch.float32)
    with pytest.raises(AssertionError):
        assert_same(reduced("sum", tensors[::-1]), reduced("sum", tensors))


def test_noise_contains_the_special_values():
    values = noise(1, (100_000,), torch.float16)[0]
    tiny = torch.finfo(torch.float16).tiny
    assert values.isnan().any() and values.isinf().any()
    assert ((values != 0) & (values.abs() < tiny)).any()
    assert ((values == 0) & values.signbit()).any()


def test_the_reference_is_not_the_engine():
    """The loop in the reference must not be fastreduce by another name."""
    tensors = noise(2, (10,), torch.float32)
    before = [x.clone() for x in tensors]
    reduced("sum", tensors)
    assert_all_same(tensors, before)
    fastreduce.allreduce(tensors)
    with pytest.raises(AssertionError):
        assert_same(tensors[1], before[1])
