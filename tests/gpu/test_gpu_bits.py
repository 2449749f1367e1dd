"""Every engine gives the CPU engine's bits: same data, same program."""

import pytest
import torch
from places import ALGORITHMS
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
from fastreduce import all_gather, allreduce, broadcast, reduce, reduce_scatter
from fastreduce.algorithms import registry

IN_RANK_ORDER = ("leader", "sharded")


def clones(tensors):
    return [x.clone() for x in tensors]


def assert_as_on_the_cpu(place, values, call):
    """``call`` leaves the same in the ranks of this place as in those of the CPU."""
    wanted, tensors = clones(values), place.put(values)
    call(wanted)
    call(tensors)
    for rank, (tensor, other) in enumerate(zip(tensors, wanted, strict=True)):
        assert tensor.device == place.device(rank)
        assert_same(tensor.cpu(), other)
    return wanted


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("dtype", OPS, ids=str)
def test_every_dtype_op_and_algorithm(place, dtype, algorithm):
    for op in OPS[dtype]:
        for k in (2, 3, 5, 8, 9):
            values = noise(k, (4099,), dtype, seed=k)
            found = assert_as_on_the_cpu(
                place, values, lambda x, op=op: allreduce(x, op, algorithm=algorithm)
            )
            if algorithm in IN_RANK_ORDER:
                assert_all_ranks_hold(op, found, reduced(op, values))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.uint8], ids=str)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_number_of_ranks(place, algorithm, dtype):
    """To 8 they are unrolled, beyond in a loop."""
    for k in (*range(1, 18), 40):
        assert_as_on_the_cpu(
            place, noise(k, (1003,), dtype), lambda x: allreduce(x, algorithm=algorithm)
        )


def test_auto(place):
    """Whatever it chooses, sums that are exact are the same in any order."""
    for elems in (10, 100_003, 1_000_003):
        tensors = place.put(origin(4, (elems,), torch.float32))
        allreduce(tensors)
        for tensor in tensors:
            assert_same(tensor.cpu(), reduced("sum", origin(4, (elems,), torch.float32)))


@pytest.mark.parametrize("shape", [(), (0,), (1,), (3, 0, 2), (255,), (1, 1, 7), (1_000_003,)])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_shapes(place, algorithm, shape):
    assert_as_on_the_cpu(
        place, noise(4, shape, torch.float32), lambda x: allreduce(x, algorithm=algorithm)
    )


LAYOUTS = {
    "transposed": lambda x, r: x.transpose(0, 3),
    "channels last": lambda x, r: x.contiguous(memory_format=torch.channels_last),
    "every other column": lambda x, r: x.repeat_interleave(2, dim=3)[..., ::2],
    "inner box": lambda x, r: torch.nn.functional.pad(x, (1, 1) * 4)[1:-1, 1:-1, 1:-1, 1:-1],
    "one element off": lambda x, r: shifted(x, 1),
    "another offset per rank": lambda x, r: shifted(x, r),
    "ranks disagree": lambda x, r: x.transpose(0, 3).contiguous().transpose(0, 3) if r % 2 else x,
}


def shifted(x, elems):
    memory = x.new_empty(x.numel() + elems)[elems:].view(x.shape)
    return memory.copy_(x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.uint8], ids=str)
@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("algorithm", ["leader", "sharded", "ring"])
def test_layouts(place, algorithm, layout, dtype):
    values = noise(5, (2, 6, 4, 10), dtype)
    views = [layout(x, rank) for rank, x in enumerate(place.put(values))]
    strides = [x.stride() for x in views]
    wanted = [layout(x, rank) for rank, x in enumerate(clones(values))]
    allreduce(views, algorithm=algorithm)
    allreduce(wanted, algorithm=algorithm)
    assert [x.stride() for x in views] == strides
    assert_all_same(views, wanted)


def test_what_lies_between_is_left_alone(place):
    rows = place.put([torch.full((50, 8), -1.0)] * 3)
    for rank, row in enumerate(rows):
        row[:, 2:5] = 10.0**rank
    allreduce([x[:, 2:5] for x in rows])
    wanted = torch.full((50, 8), -1.0)
    wanted[:, 2:5] = 111.0
    for row in rows:
        assert_same(row.cpu(), wanted)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_many_tensors_in_a_call(place, algorithm):
    """More than one launch holds, of several dtypes, some of them empty or 0-dim."""
    dtypes = (torch.float32, torch.bfloat16, torch.int64)
    shapes = [(), (0,), *((i * 37 % 301, 1 + i % 3) for i in range(700))]
    values = [noise(4, s, dtypes[i % 3], seed=i) for i, s in enumerate(shapes)]
    ranks = [list(tensors) for tensors in zip(*map(place.put, values), strict=True)]
    wanted = [list(tensors) for tensors in zip(*values, strict=True)]
    allreduce(ranks, algorithm=algorithm)
    allreduce(wanted, algorithm=algorithm)
    for rank, others in zip(ranks, wanted, strict=True):
        assert_all_same(rank, others)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bool], ids=str)
class TestCollectives:
    @pytest.mark.parametrize("k", [1, 2, 5, 8])
    def test_in_place_ones(self, place, dtype, k):
        values = noise(k, (3, 7001), dtype)
        for root in {0, k - 1}:
            assert_as_on_the_cpu(place, values, lambda x, root=root: reduce(x, root, "max"))
            assert_as_on_the_cpu(place, values, lambda x, root=root: broadcast(x, root))

    @pytest.mark.parametrize("k", [1, 2, 5, 8])
    @pytest.mark.parametrize("per_rank", [0, 1, 77, 5000])
    def test_with_outputs(self, place, dtype, k, per_rank):
        values = noise(k, (k * per_rank,), dtype)
        tensors = place.put(values)
        outputs = place.put(noise(k, (per_rank,), dtype, seed=1))
        reduce_scatter(outputs, tensors)
        assert_all_same(outputs, shards(reduced("sum", values), k))
        all_gather(tensors, outputs)
        for tensor in tensors:
            assert_same(tensor.cpu(), reduced("sum", values))

    @pytest.mark.parametrize("k", [2, 5])
    def test_shards_in_place(self, place, dtype, k):
        values = noise(k, (k * 77,), dtype)
        tensors = place.put(values)
        own = [shards(x, k)[rank] for rank, x in enumerate(tensors)]
        reduce_scatter(own, tensors)
        all_gather(tensors, own)
        for tensor in tensors:
            assert_same(tensor.cpu(), reduced("sum", values))


def shards(whole, k):
    return whole.split(whole.numel() // k) if whole.numel() else [whole] * k


def test_an_algorithm_of_the_users(place):
    @fastreduce.algorithm("last-to-first")
    def last_to_first(k):
        steps = [fastreduce.Instruction(r, 0, (r, r + 1), (r,)) for r in reversed(range(k - 1))]
        copies = [fastreduce.Instruction(r, 0, (r - 1,), (r,)) for r in range(1, k)]
        return fastreduce.Program(k, 1, [*steps, *copies])

    try:
        assert_as_on_the_cpu(
            place,
            noise(5, (10_007,), torch.float32),
            lambda x: allreduce(x, algorithm="last-to-first"),
        )
    finally:
        del registry["last-to-first"]


def test_every_run_gives_the_same_bits(place):
    values = noise(7, (100_003,), torch.float32)
    for algorithm in ("leader", "ring"):
        first, *others = (place.put(values) for _ in range(4))
        for tensors in (first, *others):
            allreduce(tensors, algorithm=algorithm)
        for tensors in others:
            assert_all_same(tensors, first)


@pytest.mark.gpu
def test_more_than_2_to_the_31_elements():
    elems = 2**31 + 65
    if torch.cuda.mem_get_info()[0] < 3 * elems:
        pytest.skip("wants 6.5 GB of free GPU memory")
    marks = torch.tensor([0, 2**31 - 1, 2**31, elems - 1], device="cuda")
    tensors = [
        torch.full((elems,), 3 + rank, dtype=torch.uint8, device="cuda") for rank in range(2)
    ]
    for rank, tensor in enumerate(tensors):
        tensor[marks] = torch.arange(1, 5, dtype=torch.uint8, device="cuda") * (10 + rank)
    allreduce(tensors)
    for tensor in tensors:
        assert tensor[marks].tolist() == [21, 42, 63, 84]
        tensor[marks] = 7
        assert tensor.amin().item() == tensor.amax().item() == 7
