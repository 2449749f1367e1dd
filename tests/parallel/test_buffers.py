"""Copies of buffers overlap as the buffers do."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fastreduce.parallel.buffers import copies

TABLE = torch.arange(24.0)
CASES = {  # buffers, and which of them see that the first is written to
    "the same twice": ([TABLE, TABLE], {0, 1}),
    "a row": ([TABLE.view(2, 12), TABLE[12:]], {0, 1}),
    "side by side": ([TABLE[:12], TABLE[12:]], {0}),
    "a chain": ([TABLE[4:10], TABLE[8:16], TABLE[14:20], TABLE[20:]], {0, 1}),
    "transposed": ([TABLE.view(4, 6).t()[1], TABLE[3:9]], {0, 1}),
    "other dtype": ([TABLE[3:5], TABLE.view(torch.int16)[7:9]], {0, 1}),
    "empty": ([TABLE[4:4], TABLE[2:6], TABLE[:0]], set()),
    "0-dim": ([TABLE[5], TABLE[5:6].detach()], {0, 1}),
}


@pytest.mark.parametrize("case", CASES)
def test_copies_overlap_as_the_buffers_do(case):
    buffers, seen_by = CASES[case]
    before = [buffer.clone() for buffer in buffers]
    made = copies(buffers, TABLE.device)
    assert all(map(torch.equal, made, before))
    made[0].fill_(99)
    assert {i for i, copy in enumerate(made) if not torch.equal(copy, before[i])} == seen_by
    assert all(map(torch.equal, buffers, before))


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 4), st.integers(1, 3)), max_size=5))
def test_any_views_of_one_memory(places):
    def views(table):
        return [table.view(-1)[b : b + n * step : step] for b, n, step in places]

    want, made = TABLE.clone(), copies(views(TABLE), TABLE.device)
    for number, (copy, view) in enumerate(zip(made, views(want), strict=True)):
        copy.add_(number)
        view.add_(number)
    assert all(map(torch.equal, made, views(want)))


def test_two_small_views_of_a_large_memory_are_copied_alone():
    made = copies([torch.empty(1000)[:3], torch.empty(1000)[998:]], TABLE.device)
    assert [copy.untyped_storage().nbytes() for copy in made] == [12, 8]
    whole = torch.empty(1000)
    made = copies([whole[:3], whole[1:4], whole[998:]], TABLE.device)
    assert [copy.untyped_storage().nbytes() for copy in made] == [16, 16, 8]


@pytest.mark.parametrize("of", [torch.conj, lambda x: x.conj().imag, torch.Tensor.to_sparse])
def test_what_has_no_memory_of_its_own(of):
    values = of(torch.tensor([1 + 2j, 3 - 4j]))
    (made,) = copies([values], TABLE.device)
    assert torch.equal(made.to_dense() + 0, values.to_dense() + 0) and made is not values
