"""States that do not fit are found out before any part is changed; what else lies in the folder."""

import pytest
import torch
from torch import nn

from fastreduce import KVStore
from fastreduce.training import CheckpointError, Config, Trainer, checkpoint, load, save
from fastreduce.training.checkpoint import read
from fastreduce.training.state import DEEPEST

GROUPS = torch.optim.SGD([nn.Parameter(torch.ones(2))], lr=0.1).state_dict()["param_groups"]


def optimizer():
    return torch.optim.SGD([nn.Parameter(torch.ones(2))], lr=0.1)


def store():
    made = KVStore()
    made.set_optimizer(torch.optim.SGD, lr=0.1)
    made.init("w", torch.zeros(2))
    made.push("w", torch.ones(2))
    return made


def store_with(**changes):
    return {**store().state_dict(), **changes}


SOMETHING_ELSE = "found the state of something else, wanted that of an optimizer"

MISFITS = {
    "no optimizer's": (optimizer, {}, SOMETHING_ELSE),
    "without groups": (optimizer, {"state": {}}, SOMETHING_ELSE),
    "without a state": (optimizer, {"param_groups": GROUPS}, SOMETHING_ELSE),
    "a state that is none": (optimizer, {"state": 1, "param_groups": GROUPS}, SOMETHING_ELSE),
    "groups that are none": (optimizer, {"state": {}, "param_groups": 1}, SOMETHING_ELSE),
    "a group that is none": (optimizer, {"state": {}, "param_groups": [1]}, SOMETHING_ELSE),
    "a group without any": (optimizer, {"state": {}, "param_groups": [{}]}, SOMETHING_ELSE),
    "of a generator elsewhere": (
        torch.Generator,
        torch.zeros(16, dtype=torch.uint8),
        r"found uint8 of shape \(16,\), wanted .* of shape \(\d+,\), the state of a generator",
    ),
    "of no generator": (
        torch.Generator,
        torch.zeros_like(torch.Generator().get_state()),
        r"found no state of a generator on cpu \(Invalid mt19937 state\), wanted one",
    ),
    "no tensor": (torch.Generator, 3, "found int, wanted uint8 of shape .* a generator on cpu"),
    "no store's": (store, {}, "found another thing than what state_dict returns"),
    "another store's": (
        store,
        store_with(values={"w": torch.zeros(3)}),
        r"found rows of 'w': float32 of shape \(3,\), wanted float32 of shape \(2,\)",
    ),
    "of no optimizer in a store": (
        store,
        store_with(optimizers={"w": {}}),
        r"key 'w': found no state of SGD \(KeyError: 'param_groups'\), wanted what state_dict ret",
    ),
}


@pytest.mark.parametrize(("make", "state", "words"), MISFITS.values(), ids=MISFITS)
def test_nothing_is_restored(tmp_path, make, state, words):
    model = nn.Linear(2, 1)
    before = model.weight.clone()
    save(tmp_path, {"model": nn.Linear(2, 1), "other": state}, step=1)
    with pytest.raises(CheckpointError, match=f"other: {words}.*; nothing was restored"):
        load(tmp_path, {"model": model, "other": make()})
    assert torch.equal(model.weight, before)


@pytest.mark.parametrize("make", [optimizer, torch.Generator, store])
def test_control_what_fits_is_restored(tmp_path, make):
    model, other = nn.Linear(2, 1), nn.Linear(2, 1)
    save(tmp_path, {"model": other, "other": make()}, step=1)
    load(tmp_path, {"model": model, "other": make()})
    assert torch.equal(model.weight, other.weight)


def test_a_run_whose_order_cannot_be_drawn_again(tiny, tmp_path):
    config = Config((torch.device("cpu"),), batch_size=5, epochs=1)
    made = Trainer(config, tiny, progress=False, checkpoints=tmp_path)
    list(made.epochs())
    found = read(tmp_path)
    save(tmp_path, {**found.state, "order": torch.zeros(16, dtype=torch.uint8)}, step=found.step)
    with pytest.raises(CheckpointError, match=r"order: found uint8 of shape \(16,\), wanted"):
        Trainer(config, tiny).restore(read(tmp_path))


class TestFolders:
    @pytest.mark.parametrize("name", ["step-x.unfinished", "step-000000001.unfinished"])
    def test_one_that_looks_like_what_a_killed_writer_left(self, tmp_path, name):
        (tmp_path / name / "below").mkdir(parents=True)
        save(tmp_path, {"x": 1}, step=1)
        assert read(tmp_path).state == {"x": 1}
        assert (tmp_path / name / "below").is_dir()

    def test_one_of_the_name_of_the_checkpoint(self, tmp_path):
        (tmp_path / "step-000000001.safetensors").mkdir()
        with pytest.raises(OSError, match=r"001\.safetensors: could not be written \(Is a dir"):
            save(tmp_path, {"x": 1}, step=1)
        assert len(list(tmp_path.iterdir())) == 1


def nested(depth):
    found = 1
    for number in range(depth):
        found = [found] if number % 2 else {"x": found}
    return found


def of_itself():
    found = {}
    found["x"] = [found]
    return found


class TestDepth:
    def test_what_is_deep_comes_back(self, tmp_path):
        save(tmp_path, {"x": nested(DEEPEST)}, step=1)
        assert read(tmp_path).state == {"x": nested(DEEPEST)}

    @pytest.mark.parametrize(
        "value", [nested(DEEPEST + 2), nested(100_000), of_itself()], ids=["2", "100,000", "no end"]
    )
    def test_what_is_too_deep_is_refused(self, tmp_path, value):
        with pytest.raises(TypeError, match=rf"x\..* more than {DEEPEST} deep") as caught:
            save(tmp_path, {"x": value}, step=1)
        assert len(str(caught.value)) < 200
        assert not any(tmp_path.iterdir())

    def test_a_step_that_is_none(self, tmp_path):
        with pytest.raises(ValueError, match=r"found step \[.*, wanted whole numbers"):
            checkpoint.save(tmp_path, {}, step=[nested(100_000)])
