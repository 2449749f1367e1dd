"""One thing wrong at a random place of good lists: refused, named, and nothing written."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import bytes_of, noise

from fastreduce import allreduce, broadcast, reduce

DTYPES = (torch.float32, torch.float16, torch.int32)


@st.composite
def good_lists(draw):
    k = draw(st.integers(2, 5))
    shapes = draw(st.lists(st.lists(st.integers(1, 5), max_size=3), min_size=1, max_size=4))
    kinds = [(shape, draw(st.sampled_from(DTYPES))) for shape in shapes]
    of_tensors = [noise(k, shape, dtype) for shape, dtype in kinds]
    return [list(rank) for rank in zip(*of_tensors, strict=True)]


def put(make):
    """Damage that replaces the tensor at (rank, index) by make(that tensor, all lists)."""

    def damage(ranks, rank, index):
        ranks[rank][index] = make(ranks[rank][index], ranks)

    return damage


def drop(ranks, rank, index):
    del ranks[rank][index]


DAMAGE = {
    "dtype": (put(lambda x, _: x.to(torch.float64)), ValueError),
    "shape": (put(lambda x, _: torch.ones(*x.shape, 2, dtype=x.dtype)), ValueError),
    "missing": (drop, ValueError),
    "None": (put(lambda x, _: None), TypeError),
    "number": (put(lambda x, _: 1.5), TypeError),
    "meta": (put(lambda x, _: x.to("meta")), ValueError),
    "sparse": (put(lambda x, _: x.to_sparse()), ValueError),
    "expanded": (put(lambda x, _: x.new_ones(1).expand(2, 3)), ValueError),
    "leaf": (put(lambda x, _: torch.ones_like(x).float().requires_grad_()), Exception),
}


@settings(max_examples=150)
@given(
    good_lists(),
    st.sampled_from(sorted(DAMAGE)),
    st.sampled_from([allreduce, reduce, broadcast]),
    st.data(),
)
def test_is_found(ranks, kind, call, data):
    damage, exception = DAMAGE[kind]
    rank = data.draw(st.integers(1, len(ranks) - 1))
    index = data.draw(st.integers(0, len(ranks[0]) - 1))
    damage(ranks, rank, index)
    before = bytes_of(ranks)
    if kind == "leaf" and ranks[0][index].dtype == torch.float32 and call is reduce:
        return  # a leaf that is only read
    with pytest.raises(exception, match=f"rank {rank}"):
        call(ranks)
    assert bytes_of(ranks) == before


@given(good_lists(), st.data())
def test_memory_in_two_places_is_found(ranks, data):
    places = [(r, i) for r in range(len(ranks)) for i in range(len(ranks[0]))]
    one, other = data.draw(st.lists(st.sampled_from(places), min_size=2, max_size=2, unique=True))
    size = torch.float32.itemsize * 2
    for r, i in places:  # all of one kind, so that nothing but the memory is wrong
        ranks[r][i] = torch.full((2,), float(r), dtype=torch.float32)
    memory = torch.arange(4 * size, dtype=torch.uint8).view(torch.float32)
    shift = data.draw(st.integers(0, 1))
    ranks[one[0]][one[1]] = memory[:2]
    ranks[other[0]][other[1]] = memory[shift : shift + 2]
    before = bytes_of(ranks)
    with pytest.raises(ValueError, match="shares memory with") as caught:
        allreduce(ranks)
    for rank, index in (one, other):
        assert f"rank {rank}, tensor {index}" in str(caught.value)
    assert bytes_of(ranks) == before


@settings(max_examples=30)
@given(good_lists())
def test_control_undamaged_lists_are_taken(ranks):
    allreduce(ranks)
    for rank in ranks[1:]:
        assert bytes_of(rank) == bytes_of(ranks[0])
