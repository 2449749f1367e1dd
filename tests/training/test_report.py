"""Metrics are JSON lines that are whole at every moment; the picture is drawn without a display."""

import contextlib
import errno
import json
import os
from pathlib import Path

import matplotlib.image
import pytest
import torch
from subprocesses import output_of

from fastreduce.training import Config, Epoch, report
from fastreduce.training.report import (
    METRICS,
    PICTURE,
    SWEEP,
    SWEEP_PICTURE,
    Metrics,
    claimed,
    plot,
    run_folder,
)
from fastreduce.training.sweep import Outcome, write

CONFIG = Config(devices=(torch.device("cpu"),) * 2)
EPOCHS = [Epoch(i, 2.3 / i, 0.2 * i, 2.0, 0.5, 0.1) for i in (1, 2, 3)]


def test_metrics_are_a_first_line_about_the_run_and_a_line_per_epoch(tiny, tmp_path):
    path = tmp_path / "new" / "metrics.jsonl"
    metrics = Metrics(path, CONFIG, tiny)
    for number, epoch in enumerate(EPOCHS, start=1):
        metrics.add(epoch)
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        assert len(lines) == 1 + number
    assert lines[0]["config"] == {
        "devices": ["cpu", "cpu"],
        "batch_size": 256,
        "lr": 0.2,
        "epochs": 10,
        "model": "lenet",
        "allreduce": None,
        "seed": 0,
        "steps": None,
        "init": "kaiming",
        "precision": "fp32",
        "compile": False,
        "graph": False,
        "overlap": True,
        "reproducible": None,
        "skip_nonfinite": False,
        "kvstore": None,
        "staleness": None,
        "backend": None,
        "lr_schedule": "constant",
        "momentum": 0.0,
        "weight_decay": 0.0,
    }
    assert lines[0]["data"]["train_images"] == 10
    assert lines[0]["versions"]["torch"] == torch.__version__
    assert lines[1] == {
        "epoch": 1,
        "loss": 2.3,
        "test_accuracy": 0.2,
        "epoch_s": 2.0,
        "allreduce_s": 0.5,
        "evaluation_s": 0.1,
        "skipped": 0,
        "allreduce_share": 0.25,
    }


def test_metrics_of_an_earlier_run_are_never_replaced(tiny, tmp_path):
    with contextlib.closing(Metrics(tmp_path / METRICS, CONFIG, tiny)) as metrics:
        metrics.add(EPOCHS[0])
    with pytest.raises(FileExistsError):
        Metrics(tmp_path / METRICS, CONFIG, tiny)
    assert len((tmp_path / METRICS).read_text().splitlines()) == 2


def test_a_run_that_goes_on_keeps_the_epochs_before_and_no_others(tiny, tmp_path):
    path = tmp_path / METRICS
    with contextlib.closing(Metrics(path, CONFIG, tiny)) as metrics:
        for epoch in EPOCHS:
            metrics.add(epoch)
    with contextlib.closing(Metrics(path, CONFIG, tiny, past=EPOCHS[:1])) as metrics:
        metrics.add(EPOCHS[1])
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line.get("epoch") for line in lines] == [None, 1, 2]


@pytest.mark.parametrize("past", [None, EPOCHS[:1]])
def test_one_run_at_a_time_writes_and_the_other_changes_nothing(tiny, tmp_path, past):
    path = tmp_path / METRICS
    with contextlib.closing(Metrics(path, CONFIG, tiny)) as metrics:
        metrics.add(EPOCHS[0])
        before = path.read_bytes()
        with pytest.raises(BlockingIOError, match=f"{path}: found that another fastreduce train"):
            Metrics(path, CONFIG, tiny, past=past)
        assert path.read_bytes() == before
    Metrics(path, CONFIG, tiny, past=EPOCHS[:1]).close()
    assert len(path.read_text().splitlines()) == 2


def test_a_file_system_without_locks_will_do(tiny, tmp_path, monkeypatch):
    def without(*_):
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr("fcntl.flock", without)
    Metrics(tmp_path / METRICS, CONFIG, tiny).close()
    assert len((tmp_path / METRICS).read_text().splitlines()) == 1


def test_a_full_disk_is_named_and_leaves_no_run_that_has_not_begun(tiny, tmp_path, monkeypatch):
    def full(*_, **__):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))  # as of a write: without a name

    path = tmp_path / METRICS
    Metrics(path, CONFIG, tiny).close()
    with monkeypatch.context() as patch:
        patch.setattr(report, "print", full, raising=False)
        with pytest.raises(OSError, match=f"No space left on device: '{path}'"):
            Metrics(path, CONFIG, tiny, past=EPOCHS)
        assert path.exists()
        path.unlink()
        with pytest.raises(OSError, match=f"No space left on device: '{path}'"):
            Metrics(path, CONFIG, tiny)
    assert not path.exists()
    monkeypatch.setattr("matplotlib.figure.Figure.savefig", full)
    with pytest.raises(OSError, match=f"No space left on device: '{tmp_path / PICTURE}'"):
        plot(EPOCHS, tmp_path / PICTURE, "title")
    with pytest.raises(OSError, match=f"No space left on device: '{tmp_path / SWEEP_PICTURE}'"):
        write([Outcome(1, 16, 0.1, 0.5)], tmp_path, "title")


@pytest.mark.parametrize("before", [None, b"of an earlier run"])
def test_a_picture_is_whole_or_that_of_before(tmp_path, monkeypatch, before):
    def cut(_, path, **__):
        Path(path).write_bytes(b"\x89PN")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("matplotlib.figure.Figure.savefig", cut)
    drawn = {
        PICTURE: lambda: plot(EPOCHS, tmp_path / PICTURE, "title"),
        SWEEP_PICTURE: lambda: write([Outcome(1, 16, 0.1, 0.5)], tmp_path, "title"),
    }
    for name, draw in drawn.items():
        if before:
            (tmp_path / name).write_bytes(before)
        with pytest.raises(OSError, match=f"No space left on device: '{tmp_path / name}'"):
            draw()
    kept = [PICTURE, SWEEP_PICTURE] * bool(before)
    assert {x.name for x in tmp_path.iterdir()} == {*kept, SWEEP}
    assert all((tmp_path / name).read_bytes() == before for name in kept)


def test_a_file_that_was_removed_is_not_begun_anew(tiny, tmp_path):
    metrics = Metrics(tmp_path / METRICS, CONFIG, tiny)
    metrics.path.unlink()
    with pytest.raises(FileNotFoundError):
        metrics.add(EPOCHS[0])
    assert not metrics.path.exists()


def test_runs_without_a_folder_of_their_own_are_numbered(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    for name, kept in (("lenet", METRICS), ("lenet-2", PICTURE), ("lenet-3", METRICS)):
        assert run_folder(None, "lenet") == Path("runs", name)
        (tmp_path / "runs" / name).mkdir(parents=True)
        assert run_folder(None, "lenet") == Path("runs", name), "an empty folder is free"
        (tmp_path / "runs" / name / kept).write_text("")


def test_a_folder_is_claimed_by_one_run(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    with claimed(None, "lenet", METRICS) as one, claimed(None, "lenet", SWEEP) as other:
        assert (one, other) == (Path("runs/lenet"), Path("runs/lenet-2"))
        assert (other / SWEEP).read_bytes() == b""
        with pytest.raises(FileExistsError, match=f"--out {one}: found an earlier run's {METRICS}"):
            claimed(one, "lenet", METRICS).__enter__()
        (other / SWEEP).write_text("[]")
    # Without anything in it, the claim is given up.
    assert run_folder(None, "lenet") == one and (other / SWEEP).exists()


def test_of_two_runs_that_found_a_folder_free_at_once_one_takes_another(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    real, others = report.run_folder, []

    def and_then_another_run_claims_it(out, model):
        folder = real(out, model)
        if not others:
            others.append(claimed(folder, model, METRICS))
            others[0].__enter__()
        return folder

    monkeypatch.setattr(report, "run_folder", and_then_another_run_claims_it)
    with claimed(None, "lenet", METRICS) as folder:
        assert folder == Path("runs/lenet-2")
    others.clear()
    with pytest.raises(FileExistsError, match="--out new: found an earlier run's"):
        claimed(Path("new"), "lenet", METRICS).__enter__()


@pytest.mark.parametrize("name", [".", "new", "new/below"])
def test_a_folder_without_a_run_is_taken_as_it_is_and_not_made_yet(tmp_path, name):
    before = list(tmp_path.iterdir())
    assert run_folder(tmp_path / name, "lenet") == tmp_path / name
    assert list(tmp_path.iterdir()) == before


REFUSED = {
    "holds metrics": ("run", FileExistsError, "run: found an earlier run's metrics.jsonl there"),
    "is a file": ("file", NotADirectoryError, "file to be a file, wanted a folder"),
    "is below a file": ("file/a/b", NotADirectoryError, "file to be a file, wanted a folder"),
    "is read-only": ("locked", PermissionError, "locked cannot be written to"),
    "is below what is read-only": ("locked/a/b", PermissionError, "locked cannot be written to"),
}


@pytest.mark.parametrize(("out", "error", "words"), REFUSED.values(), ids=REFUSED)
def test_a_folder_that_cannot_be_used_is_an_error(monkeypatch, tmp_path, out, error, words):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / METRICS).write_text("")
    (tmp_path / "file").write_text("")
    (tmp_path / "locked").mkdir()
    # Told, as who is root may write everywhere.
    monkeypatch.setattr(os, "access", lambda path, _: Path(path).name != "locked")
    with pytest.raises(error, match=words) as caught:
        run_folder(tmp_path / out, "lenet")
    assert str(caught.value).startswith(f"--out {tmp_path / out}: found ")


@pytest.mark.parametrize("loss", [float("nan"), float("inf")])
def test_a_loss_that_diverged_is_null_as_json_has_no_nan(tiny, tmp_path, loss):
    metrics = Metrics(tmp_path / "metrics.jsonl", CONFIG, tiny)
    diverged = Epoch(1, loss, 0.1, 2.0, 0.5, 0.1)
    metrics.add(diverged)
    assert json.loads(metrics.path.read_text().splitlines()[1])["loss"] is None
    plot([diverged], tmp_path / "curve.png", "diverged")


@pytest.mark.filterwarnings("error")
def test_a_loss_of_zero_is_drawn_without_a_warning(tmp_path):
    plot([Epoch(1, 0.0, 0.1, 2.0, 0.5, 0.1)], tmp_path / "curve.png", "learned")


@pytest.mark.parametrize("count", [1, 3])
def test_the_picture_is_a_png_with_something_on_it(tmp_path, count):
    plot(EPOCHS[:count], tmp_path / "curve.png", "title")
    pixels = matplotlib.image.imread(tmp_path / "curve.png")
    assert pixels.shape[:2] == (540, 1350)
    assert pixels.min() < 0.2


def test_imports_stay_light():
    code = """
        import sys, fastreduce.cli
        assert "fastreduce.training" not in sys.modules
        import fastreduce.training
        assert not {"matplotlib", "platformdirs"} & {*sys.modules}
    """
    assert output_of(code) == ""
