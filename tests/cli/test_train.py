"""The commands as a user meets them: exit status, lines, files, and Ctrl-C."""

import json
import logging
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from fastreduce import folders
from fastreduce.cli import main
from fastreduce.training import data
from fastreduce.training.data import SAMPLE

PNG = b"\x89PNG"
QUICK = ["--data", str(SAMPLE), "--devices", "cpu", "--steps", "2", "--batch-size", "8"]


@pytest.fixture(autouse=True)
def one_thread(monkeypatch):
    """So small tensors gain nothing from threads, which wait for each other on a busy machine."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def metrics(out: Path) -> list[dict]:
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


def test_train_prints_its_lines_and_writes_its_files(capsys, tmp_path):
    assert main(["train", *QUICK, "--epochs", "2", "--out", str(tmp_path / "run")]) == 0
    out, err = capsys.readouterr()
    first, second, closing, written = out.splitlines()
    epoch = (
        r"epoch {}/2: loss 2\.\d{{3}}, test acc 0\.\d{{3}}, \d+\.\d s, \d+\.\d% of it in allreduce"
    )
    assert re.fullmatch(epoch.format(1), first)
    assert re.fullmatch(epoch.format(2), second)
    devices = r"\[device\(type='cpu'\), device\(type='cpu'\)\]"
    assert re.fullmatch(rf"test acc: 0\.\d\d, \d+\.\d sec/epoch on {devices}", closing)
    paths = [tmp_path / "run" / name for name in ("metrics.jsonl", "learning_curve.png")]
    assert written == f"written: {paths[0]} {paths[1]}"
    assert paths[1].read_bytes().startswith(PNG)
    assert [line.get("epoch") for line in metrics(tmp_path / "run")] == [None, 1, 2]
    assert err == "", "no progress bar where stderr is no terminal"


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ([], {"devices": ["cpu"] * 2, "batch_size": 8, "lr": 0.2, "allreduce": "auto", "seed": 0}),
        (["--replicas", "3"], {"devices": ["cpu"] * 3}),
        (["--replicas", "1"], {"devices": ["cpu"]}),
        (["--devices", "cpu", "cpu", "cpu"], {"devices": ["cpu"] * 3}),
        (["--replicas", "3", "--scale-batch"], {"batch_size": 24}),
        (["--allreduce", "loop"], {"allreduce": "loop"}),
        (["--allreduce", "sharded", "--seed", "7"], {"allreduce": "sharded", "seed": 7}),
    ],
)
def test_flags_reach_the_run(tmp_path, flags, expected):
    flags = [*QUICK, "--epochs", "1", "--steps", "1", *flags]
    assert main(["train", *flags, "--out", str(tmp_path)]) == 0
    config = metrics(tmp_path)[0]["config"]
    assert {name: config[name] for name in expected} == expected


def test_the_same_seed_gives_the_same_metrics(tmp_path):
    for name in "ab":
        assert main(["train", *QUICK, "--epochs", "2", "--out", str(tmp_path / name)]) == 0
    one, other = ([line["loss"] for line in metrics(tmp_path / n)[1:]] for n in "ab")
    assert one == other


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--replicas", "0"], "replicas: found 0, wanted at least 1"),
        (["--replicas", "two"], "--replicas: invalid int value: 'two'"),
        (["--devices", "cpu", "cpu", "--replicas", "1"], "replicas: found 1, wanted at least 2"),
        (["--devices", "gpu"], "devices: found 'gpu'"),
        (["--devices", "cuda:99"], "devices: found 'cuda:99'"),
        (["--devices", "meta"], "devices: found 'meta'"),
        (["--devices"], "--devices: expected at least one argument"),
        (["--batch-size", "0"], "batch size: found 0"),
        (["--lr", "-1"], "lr: found -1.0"),
        (["--lr", "nan"], "lr: found nan"),
        (["--epochs", "0"], "epochs: found 0"),
        (["--steps", "0"], "steps: found 0"),
        (["--seed", "-3"], "seed: found -3"),
        (["--allreduce", "star"], "allreduce: found 'star', wanted one of auto, loop"),
        (["--colour", "red"], "--colour"),
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_is_written(capsys, tmp_path, flags, words):
    with pytest.raises(SystemExit) as end:
        main(["train", *QUICK, *flags, "--out", str(tmp_path / "run")])
    assert end.value.code == 2
    assert words in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("argv", [[], ["fly"]])
def test_no_or_an_unknown_command_is_refused(capsys, argv):
    with pytest.raises(SystemExit) as end:
        main(argv)
    assert end.value.code == 2
    assert "usage: fastreduce" in capsys.readouterr().err


@pytest.mark.parametrize(
    "argv", [["--help"], ["train", "--help"], ["tune", "--help"], ["doctor", "--help"]]
)
def test_help_is_there(capsys, argv):
    with pytest.raises(SystemExit) as end:
        main(argv)
    assert end.value.code == 0
    assert "usage: fastreduce" in capsys.readouterr().out


def test_errors_on_the_way_are_one_line_and_exit_status_1(capsys, tmp_path):
    assert main(["train", "--data", str(tmp_path)]) == 1
    assert f"fastreduce: error: --data {tmp_path}: found no" in capsys.readouterr().err
    (tmp_path / "taken").write_text("")
    assert main(["train", *QUICK, "--out", str(tmp_path / "taken")]) == 1
    assert "taken" in capsys.readouterr().err


def test_a_training_that_diverges_ends_with_what_it_reached(capsys, tmp_path):
    flags = [*QUICK, "--lr", "1e30", "--steps", "4", "--out", str(tmp_path)]
    assert main(["train", *flags]) == 1
    out, err = capsys.readouterr()
    assert "loss nan" in out
    assert "the training diverged; try a lower --lr" in err
    assert [line.get("loss", "none") for line in metrics(tmp_path)] == ["none", None]


def test_a_sample_is_announced_and_so_is_what_to_do(monkeypatch, caplog, tmp_path):
    def offline(folder):
        raise OSError("no network")

    monkeypatch.delenv("FASTREDUCE_DATA", raising=False)
    monkeypatch.setattr(data, "DEBIAN", tmp_path / "nowhere")
    monkeypatch.setattr(folders, "cache", lambda: tmp_path / "cache")
    monkeypatch.setattr(data, "download", offline)
    with caplog.at_level(logging.WARNING):
        assert main(["train", *QUICK[2:], "--epochs", "1", "--out", str(tmp_path / "run")]) == 0
    assert [record.getMessage()[:22] for record in caplog.records] == ["Training on a sample o"]
    assert metrics(tmp_path / "run")[0]["data"]["is_sample"]


def test_doctor_prints_its_report(capsys):
    assert main(["doctor"]) == 0
    assert "torch" in capsys.readouterr().out


def start(*flags: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "fastreduce", "train", "--data", str(SAMPLE), *flags]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True)


def test_ctrl_c_ends_cleanly_with_what_was_reached(tmp_path):
    process = start("--steps", "1", "--epochs", "100000", "--out", str(tmp_path))
    first = process.stdout.readline()
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert first.startswith("epoch 1/100000:")
    *epochs, closing, written = [first, *out.splitlines()]
    assert closing.startswith("test acc: 0.")
    assert written == f"written: {tmp_path / 'metrics.jsonl'} {tmp_path / 'learning_curve.png'}"
    assert len(metrics(tmp_path)) == 1 + len(epochs)
    assert (tmp_path / "learning_curve.png").read_bytes().startswith(PNG)
    assert "interrupted in epoch" in err
    assert "Traceback" not in err


def test_ctrl_c_in_the_first_epoch_says_that_nothing_was_reached(tmp_path):
    process = start("--batch-size", "1", "--epochs", "1", "--out", str(tmp_path))
    deadline_s = time.monotonic() + 60
    while not (tmp_path / "metrics.jsonl").exists() or not metrics(tmp_path):
        assert time.monotonic() < deadline_s
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert out.splitlines() == [
        "no epoch ended: no accuracy, no learning curve",
        f"written: {tmp_path / 'metrics.jsonl'}",
    ]
    assert "interrupted in epoch 1" in err
    assert "Traceback" not in err
