"""Checkpoints: what comes back, what is refused, and what a writer that is stopped leaves."""

import copy
import errno
import os
import random
from functools import partial

import pytest
import safetensors.torch
import torch
from torch import nn

import fastreduce
from fastreduce.training import CheckpointError, checkpoint, load, save
from fastreduce.training.checkpoint import read


def net(width=3):
    torch.manual_seed(width)
    return nn.Sequential(nn.Linear(2, width), nn.BatchNorm1d(width), nn.Linear(width, 1))


def made(width=3):
    """A model in training, and all that belongs to it."""
    model = fastreduce.DataParallel(net(width), ["cpu"] * 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, [2, 3])
    generator = torch.Generator().manual_seed(5)
    return {"model": model, "optimizer": optimizer, "scheduler": scheduler, "draws": generator}


def step(parts):
    X = torch.randn(6, 2, generator=parts["draws"])
    parts["optimizer"].zero_grad()
    parts["model"](X).square().mean().backward()
    parts["optimizer"].step()
    parts["scheduler"].step()


def bits(parts):
    return [x.clone() for x in parts["model"].state_dict().values()]


def same(one, other):
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


class TestWhatComesBack:
    def test_a_run_that_goes_on_has_the_bits_of_one_that_was_not_stopped(self, tmp_path):
        whole, first, second = made(), made(), made()
        for _ in range(5):
            step(whole)
        for _ in range(2):
            step(first)
        save(tmp_path, {**first, "note": "here"}, step=2)
        found = load(tmp_path, {**second, "note": None})
        assert (found.step, found.state["note"]) == (2, "here")
        for _ in range(3):
            step(second)
        assert same(bits(whole), bits(second))
        assert whole["scheduler"].get_last_lr() == second["scheduler"].get_last_lr()

    def test_the_last_three_stay(self, tmp_path):
        for number in (1, 20, 3, 400):
            save(tmp_path, {"x": number}, step=number)
        assert sorted(path.name for path in tmp_path.iterdir()) == [
            f"step-{number:09}.safetensors" for number in (3, 20, 400)
        ]
        assert read(tmp_path).state == {"x": 400}

    @pytest.mark.parametrize("keep", [1, 3])
    def test_the_one_just_written_stays_where_later_steps_are_damaged(self, tmp_path, keep):
        for number in (300, 301, 302):
            emptied(save(tmp_path, {"x": number}, step=number))
        path = save(tmp_path, {"x": 1}, step=1, keep=keep)
        assert path.exists() and read(tmp_path).state == {"x": 1}
        assert len(list(tmp_path.iterdir())) == keep

    def test_one_file_can_be_named(self, tmp_path):
        paths = [save(tmp_path, {"x": number}, step=number) for number in (1, 2)]
        assert read(paths[0]).state == {"x": 1}

    def test_other_tools_can_read_the_tensors(self, tmp_path):
        parts = made()
        path = save(tmp_path, parts, step=0)
        tensors = safetensors.torch.load_file(path)
        assert torch.equal(tensors["model.0.weight"], parts["model"][0].weight)


def cut(path):
    path.write_bytes(path.read_bytes()[:-7])


def flipped(path):
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def emptied(path):
    path.write_bytes(b"")


def other_text(path):
    content = path.read_bytes()
    path.write_bytes(content.replace(b"adamw", b"adamx"))


def a_folder(path):
    path.unlink()
    path.mkdir()


def a_link_to_nothing(path):
    path.unlink()
    path.symlink_to("gone")


def a_link_to_itself(path):
    path.unlink()
    path.symlink_to(path.name)


def no_header(path):
    path.write_bytes(random.Random(0).randbytes(200))


class TestDamage:
    @pytest.mark.parametrize(
        "damage",
        [
            *(cut, flipped, emptied, other_text, no_header),
            *(a_folder, a_link_to_nothing, a_link_to_itself),
        ],
    )
    def test_the_one_before_is_taken_and_the_damaged_one_named(self, tmp_path, caplog, damage):
        for number in (1, 2):
            path = save(tmp_path, {"x": torch.ones(4), "note": "adamw"}, step=number)
        damage(path)
        assert read(tmp_path).step == 1
        [record] = caplog.records
        assert record.getMessage().startswith(f"{path}: damaged (")

    def test_a_folder_of_that_name_is_not_removed(self, tmp_path):
        a_folder(save(tmp_path, {"x": 1}, step=1))
        for number in (2, 3, 4, 5):
            save(tmp_path, {"x": number}, step=number)
        assert len(list(tmp_path.iterdir())) == 4 and read(tmp_path).step == 5

    def test_what_the_disk_does_not_give_is_named(self, tmp_path, monkeypatch):
        path = save(tmp_path, {"x": 1}, step=1)

        def fail(*_):
            raise OSError("Input/output error (os error 5)")

        monkeypatch.setattr(checkpoint.safetensors, "safe_open", fail)
        with pytest.raises(OSError, match=rf"{path}: could not be read \(Input/output error"):
            read(tmp_path)

    def test_none_is_left(self, tmp_path):
        cut(save(tmp_path, {"x": 1}, step=1))
        with pytest.raises(CheckpointError, match=r"step-000000001\.safetensors: damaged"):
            read(tmp_path)


def rewritten(path, **changes):
    with safetensors.safe_open(path, "pt") as file:
        about = file.metadata()
        tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    path.write_bytes(safetensors.torch.save(tensors, {**about, **changes}))


def of_version_2(folder):
    rewritten(save(folder, made(), step=1), version="2")


def of_another_kind(folder):
    (folder / "step-1.safetensors").write_bytes(safetensors.torch.save({"x": torch.ones(2)}))


def a_link(folder):
    outside = save(folder.parent / "outside", made(), step=1)
    (folder / outside.name).symlink_to(outside)


def of_a_wider_model(folder):
    save(folder, made(4), step=1)


def of_another_model(folder):
    parts = made()
    save(folder, {**parts, "model": nn.Linear(2, 1)}, step=1)


def of_another_dtype(folder):
    parts = made()
    parts["model"].double()
    save(folder, parts, step=1)


def of_another_optimizer(folder):
    parts = made()
    one = torch.optim.SGD(list(parts["model"].parameters())[:2], lr=0.1)
    save(folder, {**parts, "optimizer": one}, step=1)


def of_another_kind_of_optimizer(folder):
    parts = made()
    adagrad = torch.optim.Adagrad(parts["model"].parameters())
    save(folder, {**parts, "optimizer": adagrad}, step=1)


def without_a_part(folder):
    parts = made()
    del parts["draws"]
    save(folder, parts, step=1)


def of_another_generator(folder):
    save(folder, {**made(), "draws": torch.ones(3)}, step=1)


def of_no_optimizer(folder):
    parts = made()
    save(folder, {**parts, "optimizer": parts["model"]}, step=1)


def of_a_number(folder):
    save(folder, {**made(), "model": 3}, step=1)


REFUSED = {
    "version": (of_version_2, "found version 2, wanted version 1"),
    "kind": (of_another_kind, "found a file of another kind, wanted a checkpoint"),
    "link": (a_link, "found a link to .*outside.*, wanted a file of this folder"),
    "shape": (
        of_a_wider_model,
        r"model: 0\.weight: found float32 of shape \(4, 2\), wanted float32 of shape \(3, 2\)",
    ),
    "model": (of_another_model, r"model: found no '0\.weight', .* and found 'weight', 'bias'"),
    "dtype": (of_another_dtype, r"model: 0\.weight: found float64 .*, wanted float32"),
    "optimizer": (
        of_another_optimizer,
        r"optimizer: found parameters \{'group 0': 2\}, wanted \{'group 0': 6\}",
    ),
    "optimizer's kind": (
        of_another_kind_of_optimizer,
        "optimizer: found the settings initial_accumulator_value, lr_decay of another optimizer, "
        "wanted amsgrad, betas, ",
    ),
    "no optimizer": (
        of_no_optimizer,
        "optimizer: found the state of something else, wanted that of an optim",
    ),
    "a number": (of_a_number, "model: found int, wanted a dict"),
    "parts": (without_a_part, "found model, optimizer, scheduler, wanted model, .*, draws"),
    "generator": (of_another_generator, r"draws: found float32 of shape \(3,\), wanted uint8"),
}


@pytest.mark.parametrize(("write", "words"), REFUSED.values(), ids=REFUSED)
def test_what_does_not_fit_is_an_error_and_nothing_changes(tmp_path, write, words):
    folder = tmp_path / "run"
    folder.mkdir()
    write(folder)
    parts = made()
    before = copy.deepcopy({name: parts[name].state_dict() for name in list(parts)[:3]})
    with pytest.raises(CheckpointError, match=words):
        load(folder, parts)
    after = {name: parts[name].state_dict() for name in before}
    assert str(after) == str(before)


def test_settings_that_only_a_later_torch_has_are_no_other_optimizer(tmp_path):
    parts = made()
    state = parts["optimizer"].state_dict()
    for group in state["param_groups"]:
        del group["decoupled_weight_decay"]  # as before torch had it
        group["param_names"] = list("abcdef")
    save(tmp_path, {**parts, "optimizer": state}, step=1)
    load(tmp_path, parts)


def test_no_checkpoint_at_all(tmp_path):
    for path in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(FileNotFoundError, match="found no checkpoint, wanted step-"):
            load(path, {})


class TestWriting:
    @pytest.mark.parametrize("call", ["fsync", "replace"])
    @pytest.mark.parametrize(
        ("error", "words"),
        [
            (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), "No space left on device"),
            (OSError(errno.EROFS, os.strerror(errno.EROFS)), "Read-only file system"),
        ],
    )
    def test_an_error_leaves_the_checkpoints_before(
        self, tmp_path, monkeypatch, call, error, words
    ):
        save(tmp_path, {"x": 1}, step=1)

        def fail(*_):
            raise error

        with monkeypatch.context() as patch:
            patch.setattr(checkpoint.os, call, fail)
            with pytest.raises(OSError, match=rf"step-000000002.*could not be written \({words}"):
                save(tmp_path, {"x": 2}, step=2)
        assert [path.name for path in tmp_path.iterdir()] == ["step-000000001.safetensors"]

    def test_what_a_killed_writer_left_is_removed(self, tmp_path, monkeypatch):
        def killed(*_):
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(checkpoint.os, "replace", killed)
            with pytest.raises(KeyboardInterrupt):
                save(tmp_path, {"x": 1}, step=1)
        assert [path.suffix for path in tmp_path.iterdir()] == [".unfinished"]
        save(tmp_path, {"x": 2}, step=2)
        assert [path.name for path in tmp_path.iterdir()] == ["step-000000002.safetensors"]

    def test_a_folder_that_was_removed_is_made_again(self, tmp_path):
        save(tmp_path / "a" / "b", {"x": 1}, step=1)
        assert read(tmp_path / "a" / "b").state == {"x": 1}

    @pytest.mark.parametrize(("step", "keep"), [(-1, 3), (0, 0), (1.5, 3), ("1", 3), (1, None)])
    def test_numbers_that_make_no_sense(self, tmp_path, step, keep):
        with pytest.raises(ValueError, match=f"found step {step!r} and keep {keep!r}"):
            save(tmp_path, {}, step=step, keep=keep)
        assert not any(tmp_path.iterdir())

    @pytest.mark.parametrize(
        ("parts", "words"), [([1], "found list"), (None, "found NoneType"), ({1: 2}, "the name 1")]
    )
    def test_parts_that_are_no_dict(self, tmp_path, parts, words):
        for call in (partial(save, step=1), load):
            with pytest.raises(TypeError, match=f"{words}, wanted a dict of parts by names"):
                call(tmp_path, parts)
        assert not any(tmp_path.iterdir())
