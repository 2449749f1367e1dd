"""Checkpoints: what comes back, of damaged ones too, and what a writer that is stopped leaves."""

import errno
import fcntl
import os
import random
from functools import partial

import pytest
import safetensors.torch
import torch
from saved_parts import made

from fastreduce.training import CheckpointError, checkpoint, load, save
from fastreduce.training.checkpoint import read


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

    @pytest.mark.parametrize("call", ["fsync", "replace"])
    def test_ctrl_c_leaves_nothing_unfinished(self, tmp_path, monkeypatch, call):
        def interrupted(*_):
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(checkpoint.os, call, interrupted)
            with pytest.raises(KeyboardInterrupt):
                save(tmp_path, {"x": 1}, step=1)
        assert not any(tmp_path.iterdir())

    def test_what_a_killed_writer_left_is_removed_and_not_what_another_writes(self, tmp_path):
        left, written = (tmp_path / f"step-000000001.{x}.unfinished" for x in ("left", "written"))
        left.touch()
        with written.open("wb") as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # as `save` does, in any process
            save(tmp_path, {"x": 2}, step=2)
            assert {x.name for x in tmp_path.iterdir()} == {
                written.name,
                "step-000000002.safetensors",
            }
        save(tmp_path, {"x": 3}, step=3)
        assert not written.exists()

    def test_what_is_being_written_is_locked(self, tmp_path, monkeypatch):
        def other_saves(*_):
            [written] = tmp_path.glob("*.unfinished")
            with written.open("r+b") as file, pytest.raises(BlockingIOError):
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            real(*_)

        real = os.replace
        monkeypatch.setattr(checkpoint.os, "replace", other_saves)
        assert save(tmp_path, {"x": 1}, step=1).exists()

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


def test_tensors_begin_where_those_of_torch_do(tmp_path):
    """A dot product has other bits where they do not, and with it each step of LBFGS."""
    lengths = {"a": 3, "b": 31, "c": 5}
    save(tmp_path, {"x": {name: torch.ones(n) for name, n in lengths.items()}}, step=1)
    found = read(tmp_path).state["x"]
    assert [found[name].data_ptr() % 64 for name in lengths] == [0, 0, 0]


def test_a_folder_whose_name_is_not_utf_8(tmp_path):
    folder = tmp_path / os.fsdecode(b"caf\xe9")
    save(folder, {"x": 1}, step=1)
    assert read(folder).state == {"x": 1}


def test_more_words_than_a_file_can_hold(tmp_path):
    save(tmp_path, {"x": 1}, step=1)
    with pytest.raises(ValueError, match=r"step-000000002.* wanted less than 100 MB of what is no"):
        save(tmp_path, {"x": "x" * 100_000_001}, step=2)
    assert read(tmp_path).step == 1
