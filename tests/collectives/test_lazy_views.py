"""Conjugates and negatives that torch has not carried out: their memory holds other numbers, also
where it is contiguous. A call on them is the call on plain tensors of their values."""

import pytest
import torch
from reference import assert_same, noise
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode

from fastreduce import all_gather, allreduce, broadcast, reduce, reduce_scatter

K = 3
# A view, and the dtype of its memory.
LAZY = {
    "conjugate": (torch.complex64, torch.conj),
    "negative": (torch.float32, torch._neg_view),
    "negative of a conjugate": (torch.complex64, lambda x: torch._neg_view(x.conj())),
}
LAYOUTS = {
    "contiguous": lambda x: x,
    "every other": lambda x: x.repeat_interleave(2)[::2],
}
# Each takes the ranks' short tensors, and others three times as long.
CALLS = {
    "allreduce": lambda short, long: allreduce(short),
    "reduce": lambda short, long: reduce(short, root=1),
    "broadcast": lambda short, long: broadcast(short, root=1),
    "reduce_scatter": lambda short, long: reduce_scatter(short, long),
    "all_gather": lambda short, long: all_gather(long, short),
}


def without_zeros(tensor):
    """torch loses the sign of zeros where it writes to a negative of a conjugate."""
    return torch.where(tensor == 0, 1, tensor)


def numbers(elems, dtype):
    if not dtype.is_complex:
        return [without_zeros(x) for x in noise(K, (elems,), dtype)]
    parts = [without_zeros(x) for x in noise(K, (elems, 2), dtype.to_real())]
    return [torch.view_as_complex(x) for x in parts]


def views(kind, layout, lazy, elems):
    """Of the ranks in ``lazy``; the others' tensors hold what they are."""
    dtype, view = LAZY[kind]
    memory = [LAYOUTS[layout](x) for x in numbers(elems, dtype)]
    return [view(x) if rank in lazy else x for rank, x in enumerate(memory)]


def plain(tensors):
    return [x.resolve_conj().resolve_neg().clone() for x in tensors]


@pytest.mark.parametrize("lazy", [(0,), (1,), (2,), (0, 1, 2)], ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kind", LAZY)
@pytest.mark.parametrize("call", CALLS)
def test_values_count_and_not_the_memory(call, kind, layout, lazy):
    for lazy_short, lazy_long in [(lazy, ()), ((), lazy), (lazy, lazy)]:
        short, long = views(kind, layout, lazy_short, 20), views(kind, layout, lazy_long, 20 * K)
        short_wanted, long_wanted = plain(short), plain(long)
        CALLS[call](short_wanted, long_wanted)
        CALLS[call](short, long)
        for found, wanted in zip(short + long, short_wanted + long_wanted, strict=True):
            assert_same(found, wanted)


@pytest.mark.parametrize("kind", LAZY)
def test_control_their_memory_holds_other_numbers(kind):
    for lazy in views(kind, "contiguous", range(K), 20):
        assert lazy.is_contiguous()
        memory = torch.empty(0, dtype=lazy.dtype).set_(lazy.untyped_storage())[:20]
        with pytest.raises(AssertionError):
            assert_same(memory, lazy)


def test_one_of_a_list_is_seen():
    """Whether a tensor may be used where it lies is asked for each tensor of the list."""
    ranks = [[torch.ones(4), torch._neg_view(torch.ones(4)), torch.ones(4)] for _ in range(2)]
    allreduce(ranks)
    for rank in ranks:
        assert [x.tolist() for x in rank] == [[2.0] * 4, [-2.0] * 4, [2.0] * 4]


def test_the_imaginary_part_of_a_conjugate_leaves_the_real_part_alone():
    """A negative view that torch's public functions make."""
    whole = noise(K, (40,), torch.complex64)
    imaginary, real = [x.conj().imag for x in whole], [x.real.clone() for x in whole]
    assert all(x.is_neg() for x in imaginary)
    wanted = plain(imaginary)
    allreduce(wanted)
    allreduce(imaginary)
    for x, old, found, total in zip(whole, real, imaginary, wanted, strict=True):
        assert_same(found, total)
        assert_same(x.real, old)


@pytest.mark.parametrize("kind", LAZY)
@pytest.mark.parametrize("call", CALLS)
def test_under_a_mode_they_are_the_same(call, kind):
    short, long = views(kind, "contiguous", (0, 2), 20), views(kind, "contiguous", (1,), 20 * K)
    short_wanted, long_wanted = plain(short), plain(long)
    CALLS[call](short_wanted, long_wanted)
    with FlopCounterMode(display=False):
        CALLS[call](short, long)
    for found, wanted in zip(short + long, short_wanted + long_wanted, strict=True):
        assert_same(found, wanted)


@pytest.mark.parametrize("kind", LAZY)
def test_graphs_are_not_asked_to_write_them(kind):
    with FakeTensorMode():
        dtype, view = LAZY[kind]
        ranks = [[torch.ones(4, dtype=dtype), torch.ones(4, dtype=dtype)] for _ in range(2)]
        ranks[1][0] = view(ranks[1][0])
        with pytest.raises(ValueError, match=r"rank 1, tensor 0 is a conj.*graphs.*resolve_neg"):
            allreduce(ranks)


def test_graphs_may_read_them():
    def gathered(x, y):
        outputs = [x.new_empty(4), x.new_empty(4)]
        all_gather(outputs, [x.conj(), y])
        return outputs[1]

    x, y = torch.tensor([1 + 2j, 3j]), torch.tensor([5 - 1j, 6 + 0j])
    found = torch.compile(gathered, fullgraph=True, backend="aot_eager")(x, y)
    torch._dynamo.reset()
    assert found.tolist() == [1 - 2j, -3j, 5 - 1j, 6 + 0j]
