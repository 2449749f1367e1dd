"""Any strides: dense ones are walked where they lie, others through a copy and back."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import COMPLEX, assert_same, noise, origin, reduced, threads

from fastreduce import all_gather, allreduce, broadcast, reduce, reduce_scatter


def placed(values, empty):
    """The values in the memory that ``empty`` (a view of something) covers."""
    empty.copy_(values)
    return empty


def channels_last(x):
    return x.contiguous(memory_format=torch.channels_last)


def permuted(x, order):
    """Its memory lists the dimensions in this order."""
    memory = x.new_empty([x.shape[d] for d in order])
    return placed(x, memory.permute([order.index(d) for d in range(x.dim())]))


def shifted(x, elems):
    return placed(x, x.new_empty(x.numel() + elems)[elems:].view(x.shape))


def within(x, cut, room):
    """Part of a larger tensor."""
    return placed(x, x.new_empty([n + m for n, m in zip(x.shape, room, strict=True)])[cut])


# How rank r's tensor of four dimensions lies in memory.
LAYOUTS = {
    "contiguous": lambda x, r: x,
    "channels_last": lambda x, r: channels_last(x),
    "transposed": lambda x, r: permuted(x, (3, 1, 2, 0)),
    "permuted": lambda x, r: permuted(x, (2, 3, 0, 1)),
    "ranks disagree": lambda x, r: channels_last(x) if r % 2 else x,
    "rank 0 alone differs": lambda x, r: x if r else channels_last(x),
    "every other column": lambda x, r: within(x, (..., slice(None, None, 2)), (0, 0, 0, 10)),
    "inner box": lambda x, r: within(x, tuple(slice(1, n + 1) for n in x.shape), (2,) * 4),
    "from a longer row": lambda x, r: within(x, (..., slice(10)), (0, 0, 0, 1)),
    "one element off": lambda x, r: shifted(x, 1),
    "another offset per rank": lambda x, r: shifted(x, r),
}
DTYPES = (torch.float32, torch.float16, torch.uint8, torch.complex64)


@pytest.mark.parametrize("k", [1, 2, 5])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
class TestLayouts:
    shape = (2, 6, 4, 10)

    def tensors(self, layout, dtype, k):
        values = noise(k, self.shape, dtype)
        return values, [layout(x.clone(), r) for r, x in enumerate(values)]

    @pytest.mark.parametrize("algorithm", ["leader", "sharded"])
    def test_allreduce(self, algorithm, layout, dtype, k):
        values, tensors = self.tensors(layout, dtype, k)
        strides = [x.stride() for x in tensors]
        allreduce(tensors, algorithm=algorithm)
        for tensor in tensors:
            assert_same(tensor, reduced("sum", values))
        assert [x.stride() for x in tensors] == strides

    def test_reduce_and_broadcast(self, layout, dtype, k):
        values, tensors = self.tensors(layout, dtype, k)
        reduce(tensors, root=k - 1)
        for tensor, value in zip(tensors[:-1], values[:-1], strict=True):
            assert_same(tensor, value)
        broadcast(tensors, root=k - 1)
        for tensor in tensors:
            assert_same(tensor, reduced("sum", values))

    def test_reduce_scatter_and_all_gather(self, layout, dtype, k):
        values, tensors = self.tensors(layout, dtype, k)
        wholes = [layout(torch.cat([x] * k), r) for r, x in enumerate(values)]
        reduce_scatter(tensors, wholes)
        for tensor in tensors:
            assert_same(tensor, reduced("sum", values))
        all_gather(wholes, tensors)
        for whole in wholes:
            assert_same(whole, torch.cat(tensors))


@pytest.mark.parametrize("k", [1, 2, 5])
@pytest.mark.parametrize("one", LAYOUTS)
@pytest.mark.parametrize("other", ["contiguous", "channels_last", "transposed"])
def test_outputs_may_lie_otherwise_than_tensors(one, other, k):
    shards = noise(k, (2, 6, 4, 10), torch.float32)
    outputs = [LAYOUTS[one](x.clone(), r) for r, x in enumerate(shards)]
    wholes = [LAYOUTS[other](torch.cat([x] * k), r) for r, x in enumerate(shards)]
    reduce_scatter(outputs, wholes)
    for output in outputs:
        assert_same(output, reduced("sum", shards))
    all_gather(wholes, [LAYOUTS[one](x.clone(), r) for r, x in enumerate(shards)])
    for whole in wholes:
        assert_same(whole, torch.cat(shards))


def torch_operations_of(call, *args):
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        call(*args)
    return {event.name for event in profile.events() if event.name.startswith("aten::")}


def test_dense_tensors_that_agree_are_walked_without_a_copy():
    tensors = [channels_last(x) for x in noise(3, (2, 6, 4, 10), torch.float32)]
    assert not torch_operations_of(allreduce, tensors)
    assert not torch_operations_of(allreduce, [x.permute(3, 1, 0, 2) for x in tensors])
    assert "aten::copy_" in torch_operations_of(allreduce, [tensors[0].contiguous(), tensors[1]])


def test_what_lies_between_is_left_alone():
    rows = [torch.full((50, 8), -1.0) for _ in range(3)]
    views = [x[:, 2:5] for x in rows]
    for rank, view in enumerate(views):
        view.fill_(10.0**rank)
    allreduce(views)
    wanted = torch.full((50, 8), -1.0)
    wanted[:, 2:5] = 111.0
    for row in rows:
        assert_same(row, wanted)


NARROW = [getattr(torch, f"{sign}int{bits}") for sign in ("", "u") for bits in range(1, 8)]


@pytest.mark.parametrize("dtype", NARROW, ids=str)
def test_integers_that_torch_cannot_copy_are_moved_wherever_they_lie(dtype):
    memory = torch.arange(12, dtype=torch.uint8)
    narrow = memory.view(dtype)
    broadcast([narrow[0:6:2], narrow[6::2]], root=1)
    assert memory.tolist() == [6, 1, 8, 3, 10, 5, 6, 7, 8, 9, 10, 11]
    outputs = torch.zeros(24, dtype=torch.uint8)
    halves = [outputs[:12:2].view(dtype), outputs[12::2].view(dtype)]
    all_gather(halves, list(narrow.view(2, 6)[:, 1:4]))
    assert outputs[12::2].tolist() == outputs[:12:2].tolist() == [1, 8, 3, 7, 8, 9]


def test_ranks_may_be_the_columns_of_one_matrix():
    matrix = torch.stack(noise(5, (1000,), torch.float32), dim=1)
    wanted = reduced("sum", [x.clone() for x in matrix.unbind(1)])
    allreduce(list(matrix.unbind(1)))
    for column in matrix.unbind(1):
        assert_same(column, wanted)


def test_ranks_may_be_the_rows_of_one_matrix():
    matrix = torch.stack(noise(5, (1001,), torch.float32))
    wanted = reduced("sum", list(matrix.clone()))
    allreduce(list(matrix))
    for row in matrix:
        assert_same(row, wanted)


@pytest.mark.parametrize("dtype", COMPLEX, ids=str)
@pytest.mark.parametrize("lazy", [[0], [1], [0, 1, 2]], ids=str)
def test_lazy_conjugates(lazy, dtype):
    tensors = noise(3, (40,), dtype)
    views = [x.conj() if rank in lazy else x for rank, x in enumerate(tensors)]
    assert [x.is_conj() for x in views] == [rank in lazy for rank in range(3)]
    wanted = reduced("sum", [x.resolve_conj().clone() for x in views])
    allreduce(views)
    for view in views:
        assert_same(view, wanted)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.bool, torch.float8_e5m2], ids=str)
@pytest.mark.parametrize("offset", [1, 3, 63])
def test_odd_addresses(offset, dtype):
    tensors = [x[offset:] for x in noise(3, (1000,), dtype)]
    assert all(x.data_ptr() % 2 for x in tensors)
    wanted = reduced("sum", [x.clone() for x in tensors])
    allreduce(tensors)
    for tensor in tensors:
        assert_same(tensor, wanted)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16], ids=str)
def test_addresses_that_are_no_multiple_of_the_element(dtype):
    """torch.frombuffer makes such tensors, and torch's own operations take them."""
    memory = [bytearray(1000 * dtype.itemsize + 1) for _ in range(3)]
    tensors = [torch.frombuffer(x, dtype=dtype, offset=1, count=1000) for x in memory]
    values = origin(3, (1000,), dtype)
    for tensor, value in zip(tensors, values, strict=True):
        tensor.copy_(value)
    allreduce(tensors)
    for tensor, whole in zip(tensors, memory, strict=True):
        assert_same(tensor.clone(), reduced("sum", values))
        assert whole[0] == 0


@settings(max_examples=60)
@given(st.data())
def test_any_views(data):
    """Random permutations, steps and offsets, another for each rank."""
    shape = data.draw(st.lists(st.integers(0, 5), max_size=4))
    values = noise(3, shape, torch.float32)
    views = []
    for value in values:
        order = data.draw(st.permutations(range(len(shape))))
        steps = [data.draw(st.integers(1, 3)) for _ in shape]
        memory = torch.empty([shape[d] * steps[d] + 1 for d in order])
        view = memory.permute([order.index(d) for d in range(len(shape))])
        cut = tuple(slice(0, n * step, step) for n, step in zip(shape, steps, strict=True))
        views.append(placed(value, view[cut]))
    allreduce(views)
    for view in views:
        assert_same(view, reduced("sum", values))


def free_memory_bytes():
    try:
        with open("/proc/meminfo") as lines:
            return next(int(x.split()[1]) * 1024 for x in lines if x.startswith("MemAvailable"))
    except (OSError, StopIteration):
        return 0


@pytest.mark.skipif(free_memory_bytes() < 12 * 2**30, reason="needs 12 GB of free memory")
@pytest.mark.sweep("2^31 elements")
def test_more_than_2_to_the_31_elements():
    elems = 2**31 + 65
    tensors = [torch.full((elems,), 3 + rank, dtype=torch.uint8) for rank in range(2)]
    marks = [0, 2**31 - 1, 2**31, elems - 1]
    for rank, tensor in enumerate(tensors):
        tensor[marks] = torch.arange(1, 5, dtype=torch.uint8) * (10 + rank)
    with threads(2):
        allreduce(tensors)
    for tensor in tensors:
        assert tensor[marks].tolist() == [21, 42, 63, 84]
        tensor[marks] = 7
        assert tensor.amin() == tensor.amax() == 7
