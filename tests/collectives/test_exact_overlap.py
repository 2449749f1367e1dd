"""Whether tensors share memory is decided to the byte, of views with any strides."""

import itertools
import re

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fastreduce import all_gather, allreduce, reduce_scatter

f32, i16, u8 = torch.float32, torch.int16, torch.uint8
MEMORY_BYTES = 256


def view(memory, dtype, shape, strides, offset):
    """Strides and offset count elements of the dtype; the memory has bytes."""
    return memory.view(dtype).as_strided(shape, strides, offset)


def addresses(dtype, shape, strides, offset):
    """The bytes of each element, one set for each: the definition, by counting."""
    elements = []
    for index in itertools.product(*map(range, shape)):
        first = offset + sum(i * stride for i, stride in zip(index, strides, strict=True))
        elements.append({first * dtype.itemsize + byte for byte in range(dtype.itemsize)})
    return elements


def shares_with_itself(*where):
    elements = addresses(*where)
    return len(set().union(*elements)) < sum(map(len, elements))


def share(one, other):
    return not set().union(*addresses(*one)).isdisjoint(set().union(*addresses(*other)))


# By name: one rank's shape, strides and offset, the other's strides and offset; whether they share.
PAIRS = {
    "end to end": ((4,), (1,), 0, (1,), 4, False),
    "one element more": ((4,), (1,), 0, (1,), 3, True),
    "end to end, the later first": ((4,), (1,), 4, (1,), 0, False),
    "one element more, the later first": ((4,), (1,), 3, (1,), 0, True),
    "the other columns": ((4,), (2,), 0, (2,), 1, False),
    "the same columns, one row later": ((4,), (2,), 0, (2,), 2, True),
    "behind the last element": ((4,), (3,), 0, (3,), 10, False),
    "at the last element": ((4,), (3,), 0, (3,), 9, True),
    "before the last element": ((4,), (3,), 0, (3,), 8, False),
    "other steps, never at one place": ((3,), (4,), 0, (2,), 1, False),
    "other steps, at one place in the end": ((3,), (4,), 0, (3,), 2, True),
    "other steps, past each other in the end": ((3,), (4,), 0, (3,), 3, False),
    "left and right half": ((3, 2), (4, 1), 0, (4, 1), 2, False),
    "halves and one column more": ((3, 2), (4, 1), 0, (4, 1), 1, True),
    "columns first, end to end": ((2, 3), (1, 2), 0, (1, 2), 6, False),
    "columns first, one element more": ((2, 3), (1, 2), 0, (1, 2), 5, True),
    "columns first and rows first, end to end": ((2, 3), (1, 2), 0, (3, 1), 6, False),
    "in the gap of the other": ((2,), (9,), 0, (1,), 7, False),
    "at the end of the other's gap": ((2,), (9,), 0, (1,), 8, True),
    "rows of one, columns of the other": ((2, 2), (8, 1), 0, (1, 8), 2, False),
    "rows of one, columns of the other, shared": ((2, 2), (8, 1), 0, (1, 8), 1, True),
    "one element, any strides": ((1, 1), (0, 7), 3, (5, 0), 4, False),
    "one element, the same": ((1, 1), (0, 7), 3, (5, 0), 3, True),
}
# A tensor's shape and strides, and whether two of its elements share memory.
ALONE = {
    "rows end to end": ((4, 3), (3, 1), False),
    "rows that share one element": ((4, 3), (2, 1), True),
    "columns end to end": ((3, 4), (1, 3), False),
    "columns that share one element": ((4, 4), (1, 3), True),
    "interleaved rows": ((3, 2), (2, 3), False),
    "interleaved rows that meet in the end": ((4, 2), (2, 6), True),
    "interleaved rows that end before they meet": ((3, 2), (2, 6), False),
    "one element repeated": ((2,), (0,), True),
    "one element once": ((1,), (0,), False),
    "one row repeated": ((2, 3), (0, 1), True),
    "three strides, apart": ((2, 2, 2), (7, 3, 1), False),
    "three strides, of which two make the third": ((2, 2, 2), (4, 3, 1), True),
    "one stride twice": ((2, 2), (1, 1), True),
    "empty, with a stride of zero": ((2, 0), (0, 0), False),
}


@pytest.mark.parametrize("dtype", [f32, u8], ids=str)
class TestEdges:
    @pytest.mark.parametrize("name", PAIRS)
    def test_of_two_tensors(self, name, dtype):
        shape, strides, offset, other_strides, other_offset, wanted = PAIRS[name]
        one, other = (dtype, shape, strides, offset), (dtype, shape, other_strides, other_offset)
        assert share(one, other) == wanted  # the table itself
        memory = torch.zeros(MEMORY_BYTES, dtype=u8)
        tensors = [view(memory, *one), view(memory, *other)]
        if wanted:
            with pytest.raises(ValueError, match=r"rank \d, tensor 0 shares memory with rank"):
                allreduce(tensors)
        else:
            tensors[0].fill_(1)
            tensors[1].fill_(2)
            allreduce(tensors)
            assert all(x.eq(3).all() for x in tensors)

    @pytest.mark.parametrize("name", ALONE)
    def test_of_one_tensor(self, name, dtype):
        shape, strides, wanted = ALONE[name]
        assert shares_with_itself(dtype, shape, strides, 2) == wanted
        memory = torch.zeros(MEMORY_BYTES, dtype=u8)
        tensors = [torch.ones(shape, dtype=dtype), view(memory, dtype, shape, strides, 2)]
        if wanted:
            with pytest.raises(ValueError, match="rank 1, tensor 0 overlaps itself"):
                allreduce(tensors)
        else:
            allreduce(tensors)
            assert all(x.eq(1).all() for x in tensors)


@pytest.mark.parametrize(
    ("begin", "refused"), [(0, True), (11, True), (12, False), (15, False)], ids=str
)
def test_elements_of_different_sizes_are_compared_by_bytes(begin, refused):
    memory = torch.zeros(64, dtype=u8)
    mine = [memory[:12].view(f32), memory[begin : begin + 5]]
    others = [torch.ones(3), torch.ones(5, dtype=u8)]
    if refused:
        with pytest.raises(
            ValueError, match="rank 0, tensor 1 shares memory with rank 0, tensor 0"
        ):
            allreduce([mine, others])
    else:
        allreduce([mine, others])
        assert mine[1].tolist() == [1] * 5


def test_one_byte_of_a_strided_element_is_enough():
    """Its last byte, and the one behind it."""
    memory = torch.zeros(64, dtype=u8)
    for begin, refused in [(7, True), (8, False), (15, False), (16, True)]:
        mine = [memory.view(f32)[1::3], memory[begin : begin + 1]]
        assert mine[0].tolist() == [0.0] * 5
        others = [torch.zeros(5), torch.zeros(1, dtype=u8)]
        if refused:
            with pytest.raises(ValueError, match="shares memory"):
                allreduce([mine, others])
        else:
            allreduce([mine, others])


@pytest.mark.parametrize(("begin", "refused"), [(12, True), (13, False), (19, True), (21, False)])
def test_a_long_view_is_compared_with_all_that_begin_before_its_end(begin, refused):
    """Elements 0, 4, 8, ... 20 of rank 0; one view in its first gap, and another behind that."""
    memory = torch.zeros(24)
    ranks = [[memory[0:21:4], memory[1:3]], [torch.zeros(6), memory[begin : begin + 2]]]
    if refused:
        with pytest.raises(ValueError, match=r"rank 1, tensor 1 shares memory with rank 0"):
            allreduce(ranks)
    else:
        allreduce(ranks)


@st.composite
def lists(draw):
    """Two or three ranks' lists of views of one memory, as `view` takes them."""
    ranks = []
    kinds = draw(
        st.lists(
            st.tuples(
                st.sampled_from([f32, i16, u8]),
                st.lists(st.integers(0, 3), max_size=3).map(tuple),
            ),
            min_size=1,
            max_size=2,
        )
    )
    for _ in range(draw(st.integers(2, 3))):
        rank = []
        for dtype, shape in kinds:
            strides = tuple(draw(st.integers(0, 6)) for _ in shape)
            reach = sum((n - 1) * stride for n, stride in zip(shape, strides, strict=True) if n)
            last = MEMORY_BYTES // dtype.itemsize - 1 - reach
            rank.append((dtype, shape, strides, draw(st.integers(0, min(30, last)))))
        ranks.append(rank)
    return ranks


def labelled(ranks):
    return {(r, i): where for r, rank in enumerate(ranks) for i, where in enumerate(rank)}


@settings(max_examples=400)
@given(lists())
@example([[(f32, (3,), (4,), 0)], [(f32, (3,), (3,), 2)]])
def test_any_views_are_refused_exactly_if_they_share_memory(ranks):
    memory = torch.arange(MEMORY_BYTES, dtype=u8)
    tensors = [[view(memory, *where) for where in rank] for rank in ranks]
    of = labelled(ranks)
    alone = {x for x, where in of.items() if shares_with_itself(*where)}
    pairs = {(x, y) for x, y in itertools.combinations(of, 2) if share(of[x], of[y])}
    before = memory.clone()
    try:
        allreduce(tensors, op="max")
    except ValueError as error:
        assert torch.equal(memory, before)
        named = [tuple(map(int, x)) for x in re.findall(r"rank (\d+), tensor (\d+)", str(error))]
        if "overlaps itself" in str(error):
            assert named[0] in alone
        else:
            assert "shares memory" in str(error) and tuple(sorted(named)) in pairs
    else:
        assert not alone and not pairs
        for of_all in zip(*tensors, strict=True):
            assert all(x.isnan().equal(of_all[0].isnan()) for x in of_all)
            assert all(x.nan_to_num().equal(of_all[0].nan_to_num()) for x in of_all)


def test_control_both_answers_are_frequent():
    """So that the property above is not agreement on one of them."""
    answers = []

    @settings(max_examples=200, database=None)
    @given(lists())
    def collect(ranks):
        of = list(labelled(ranks).values())
        answers.append(any(itertools.starmap(share, itertools.combinations(of, 2))))

    collect()
    assert 20 < sum(answers) < len(answers) - 20


SHARDS = {
    "its own": (0, 0, 0, True),
    "of the last rank, its own": (2, 2, 0, True),
    "the next rank's": (0, 1, 0, False),
    "the first rank's": (1, 0, 0, False),
    "the rank's before, of the last": (2, 1, 0, False),
    "one element early": (1, 1, -1, False),
    "one element late": (1, 1, 1, False),
}


class TestShards:
    """A rank's shard may lie in its whole tensor at the place where the result belongs."""

    ELEMS, K = 4, 3

    @pytest.mark.parametrize("call", [reduce_scatter, all_gather])
    @pytest.mark.parametrize("name", SHARDS)
    def test_in_place(self, name, call):
        rank, place, shift, allowed = SHARDS[name]
        wholes = [torch.arange(14.0)[1:13] for _ in range(self.K)]
        shards = [torch.zeros(self.ELEMS) for _ in range(self.K)]
        begin = 1 + place * self.ELEMS + shift
        shards[rank] = wholes[rank].as_strided((self.ELEMS,), (1,), begin)
        self.expect(call, wholes, shards, allowed)

    @pytest.mark.parametrize("call", [reduce_scatter, all_gather])
    def test_of_another_ranks_tensor_is_refused(self, call):
        wholes = [torch.zeros(12) for _ in range(self.K)]
        shards = [torch.zeros(self.ELEMS) for _ in range(self.K)]
        shards[1] = wholes[0][4:8]
        self.expect(call, wholes, shards, False)

    @pytest.mark.parametrize("call", [reduce_scatter, all_gather])
    def test_of_another_tensor_of_the_rank_is_refused(self, call):
        wholes = [[torch.zeros(12), torch.zeros(12)] for _ in range(self.K)]
        shards = [[torch.zeros(self.ELEMS) for _ in range(2)] for _ in range(self.K)]
        shards[1][1] = wholes[1][0][4:8]
        self.expect(call, wholes, shards, False)

    @pytest.mark.parametrize("call", [reduce_scatter, all_gather])
    @pytest.mark.parametrize("strided", ["whole", "shard"])
    def test_with_strides_is_refused(self, strided, call):
        """Through a copy it would not be in place."""
        wholes = [torch.zeros(6, 2) for _ in range(self.K)]
        shards = [torch.zeros(2, 2) for _ in range(self.K)]
        if strided == "whole":
            memory = torch.zeros(12)
            wholes[0], shards[0] = memory.view(2, 6).t(), memory[:4].view(2, 2)
        else:
            shards[0] = wholes[0][:2].t()
        self.expect(call, wholes, shards, False)

    def expect(self, call, wholes, shards, allowed):
        arguments = (shards, wholes) if call is reduce_scatter else (wholes, shards)
        if allowed:
            call(*arguments)
        else:
            with pytest.raises(ValueError, match="shares memory"):
                call(*arguments)
