"""The bits of tensors, whatever their strides."""

import pytest
import torch

from fastreduce import DataParallel, KVStore
from fastreduce.bits import bytes_of
from fastreduce.parallel.same_bits import check_replicas
from fastreduce.training import load, save

# The first element of a column, and a column of no rows: contiguous, for torch, with a stride of 2.
FEW = [torch.ones(5, 2)[:1, 0], torch.ones(5, 2)[:0, 0]]


@pytest.mark.parametrize("value", [*FEW, torch.ones(3, 2).T, torch.ones(()), torch.ones(2, 0)])
def test_bytes_are_those_of_the_elements_in_their_order(value):
    assert bytes(bytes_of(value).numpy()) == value.numpy().tobytes()


def test_views_that_torch_changes_when_it_reads_them():
    value = torch.tensor([1 + 2j, 3 + 4j])
    for view in (value.conj(), value.conj().imag):
        assert bytes(bytes_of(view).numpy()) == view.resolve_conj().resolve_neg().numpy().tobytes()


@pytest.mark.parametrize("value", FEW)
class TestFewElementsWithAStride:
    def test_in_a_store(self, value):
        store = KVStore()
        store.broadcast("x", value, out := torch.zeros_like(value))
        assert torch.equal(out, value)

    def test_in_a_checkpoint(self, value, tmp_path):
        save(tmp_path, {"x": value}, step=1)
        assert torch.equal(load(tmp_path, {"x": value}).state["x"], value)

    def test_in_a_record(self, value, tmp_path):
        net = torch.nn.Linear(1, 1)
        net.scale = torch.nn.Parameter(value)
        DataParallel(net, devices=["cpu"], record=tmp_path / "record")(torch.ones(1, 1))
        assert len((tmp_path / "record").read_text().splitlines()) == 2

    def test_in_replicas(self, value):
        check_replicas([[value], [value.clone()]])
