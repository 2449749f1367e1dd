"""The commands as a user meets them: exit status, lines and files."""

import argparse
import dataclasses
import logging
import os
import re
from pathlib import Path

import pytest
import torch
from finished_runs import metrics
from sweeps import one_in

from fastreduce import folders
from fastreduce.cli import main, train, train_config
from fastreduce.training import data, load_fashion_mnist
from fastreduce.training.config import SAMPLE_SETTINGS as BY_MODEL
from fastreduce.training.config import SETTINGS
from fastreduce.training.data import SAMPLE

SAMPLE_SETTINGS = BY_MODEL["lenet"]
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


def test_train_prints_its_lines_and_writes_its_files(capsys, tmp_path):
    assert main(["train", *QUICK, "--epochs", "2", "--out", str(tmp_path / "run")]) == 0
    out, err = capsys.readouterr()
    settings, place, first, second, closing, written = out.splitlines()
    assert settings.startswith(
        "lenet on a sample of Fashion-MNIST, replicas: 2, batch: 8, lr: 0.08, init: kaiming, "
        "epochs: 2, seed: 0 ("
    )
    assert place == f"results go to {tmp_path / 'run'}"
    epoch = r"epoch {}/2: loss \d\.\d{{3}}, test acc 0\.\d{{3}}, \d+\.\d s"
    assert re.fullmatch(epoch.format(1), first)
    assert re.fullmatch(epoch.format(2), second)
    devices = r"\[device\(type='cpu'\), device\(type='cpu'\)\]"
    assert re.fullmatch(rf"test acc: 0\.\d\d, \d+\.\d sec/epoch on {devices}", closing)
    names = ("metrics.jsonl", "learning_curve.png", "checkpoints")
    paths = [tmp_path / "run" / name for name in names]
    assert written == f"written: {' '.join(map(str, paths))}"
    assert paths[1].read_bytes().startswith(PNG)
    assert [line.get("epoch") for line in metrics(tmp_path / "run")] == [None, 1, 2]
    assert err == "", "no progress bar where stderr is no terminal"


@pytest.mark.parametrize(
    ("flags", "expected"),
    one_in(
        3,
        [
            ([], {"devices": ["cpu"] * 2, "batch_size": 8, "allreduce": None, "seed": 0}),
            (["--init", "book"], {"init": "book"}),
            (["--lr", "0.3"], {"lr": 0.3, "lr_schedule": "constant"}),
            (["--lr-schedule", "linear"], {"lr": 0.08, "lr_schedule": "linear"}),
            (["--momentum", "0.9", "--weight-decay", "1e-4"], {"momentum": 0.9}),
            (["--replicas", "3"], {"devices": ["cpu"] * 3}),
            (["--replicas", "1"], {"devices": ["cpu"]}),
            (["--devices", "cpu", "cpu", "cpu"], {"devices": ["cpu"] * 3}),
            (["--replicas", "3", "--scale-batch"], {"batch_size": 24}),
            (["--no-overlap"], {"overlap": False}),
            (["--model", "mlp", "--compile"], {"model": "mlp", "compile": True}),
            (["--precision", "bf16"], {"precision": "bf16"}),
            (["--reproducible", "4"], {"reproducible": 4}),
            (["--skip-nonfinite"], {"skip_nonfinite": True}),
            (["--allreduce", "loop"], {"allreduce": "loop"}),
            (["--allreduce", "sharded", "--seed", "7"], {"allreduce": "sharded", "seed": 7}),
        ],
        "cases",
    ),
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
        (["--replicas", "1000000000000"], "replicas: found 1000000000000 for a batch of 8 ex"),
        (["--replicas", "two"], "--replicas: invalid int value: 'two'"),
        (["--devices", "cpu", "cpu", "--replicas", "1"], "replicas: found 1, wanted at least 2"),
        (["--devices", "gpu"], "devices: found 'gpu'"),
        (["--devices", "cpu,cpu"], "wanted each device by itself: --devices cpu cpu"),
        (["--devices", "cuda:99"], "devices: found 'cuda:99'"),
        (["--devices", "meta"], "devices: found 'meta'"),
        (["--devices"], "--devices: expected at least one argument"),
        (["--batch-size", "0"], "batch size: found 0"),
        (["--batch-size", str(2**63)], f"batch size: found {2**63}, wanted at most 2**63 - 1"),
        (["--lr", "-1"], "lr: found -1.0"),
        (["--lr", "nan"], "lr: found nan"),
        (["--lr", "1e39"], "lr: found 1e+39, wanted a number above 0, and at most 3.4e+38"),
        (["--epochs", "0"], "epochs: found 0"),
        (["--steps", "0"], "steps: found 0"),
        (["--seed", "-3"], "seed: found -3"),
        (["--init", "zeros"], "init: found 'zeros', wanted one of kaiming, book"),
        (["--allreduce", "star"], "allreduce: found 'star', wanted one of auto, loop"),
        (
            ["--kvstore", "star"],
            "found 'star', wanted one of local, dist_sync, dist_async",
        ),
        (["--kvstore", "local", "--staleness", "1"], "found staleness 1 with local"),
        (["--kvstore", "dist_async", "--staleness", "-1"], "found staleness -1, wanted 0, 1"),
        (["--staleness", "1"], "staleness: found 1 without a kvstore, wanted kvstore dist_async"),
        (["--kvstore", "local", "--allreduce", "ring"], "kvstore: found 'local' with allreduce"),
        (["--kvstore", "local", "--skip-nonfinite"], "skip-nonfinite: found with kvstore 'local'"),
        (["--kvstore", "local", "--compare", "single"], "compare: found together with kvstore"),
        (["--kvstore", "local", "--lr-sweep", "1"], "lr-sweep: found together with kvstore"),
        (["--backend", "mpi"], "backend: found 'mpi', wanted one of fastreduce, gloo"),
        (["--backend", "gloo", "--replicas", "2"], "replicas: found 2 with backend 'gloo'"),
        (["--backend", "gloo", "--compare", "single"], "compare: found together with backend"),
        (["--allreduce", "ring", "--model", "mlp"], "model: found 'mlp' with allreduce 'ring'"),
        (["--model", "vgg"], "model: found 'vgg', wanted one of lenet, resnet18, mlp"),
        (["--model", "LeNet"], "did you mean 'lenet'?"),
        (["--precision", "fp8"], "precision: found 'fp8', wanted one of fp32, bf16"),
        (["--reproducible", "0"], "reproducible: found 0, wanted at least 1"),
        (["--reproducible", "100000"], "reproducible: found 100000 micro-shards for a batch of 8"),
        (["--checkpoint-every", "0"], "--checkpoint-every: found '0', wanted a number of steps"),
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


def test_a_run_is_never_overwritten(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    quick = ["train", *QUICK, "--steps", "1", "--epochs", "1"]
    for folder in ("runs/lenet", "runs/lenet-2"):
        assert main(quick) == 0
        assert f"results go to {folder}\n" in capsys.readouterr().out
        assert len(metrics(Path(folder))) == 2
    before = Path("runs/lenet/metrics.jsonl").read_bytes()
    assert main([*quick, "--out", "runs/lenet"]) == 1
    assert "--out runs/lenet: found an earlier run's metrics.jsonl" in capsys.readouterr().err
    assert Path("runs/lenet/metrics.jsonl").read_bytes() == before


def test_an_out_that_cannot_be_is_refused_in_words_before_data_is_looked_for(capsys, tmp_path):
    (tmp_path / "taken").write_text("")
    for out in (tmp_path / "taken", tmp_path / "taken" / "below"):
        assert main(["train", "--data", "/no/such/folder", "--out", str(out)]) == 1
        err = capsys.readouterr().err
        assert f"--out {out}: found {tmp_path / 'taken'} to be a file, wanted a folder" in err


@pytest.mark.parametrize("flag", ["--out", "--resume", "--data"])
def test_a_folder_without_a_name_is_not_the_current_one(flag, capsys):
    with pytest.raises(SystemExit):
        main(["train", flag, ""])
    assert f"argument {flag}: found an empty name, want a folder" in capsys.readouterr().err


def flags_of(argv):
    parser = argparse.ArgumentParser()
    train.add(parser.add_subparsers())
    args = parser.parse_args(["train", "--devices", "cpu", *argv])
    return train_config.new_config(args, is_sample=True)


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ([], SAMPLE_SETTINGS),
        (["--batch-size", "256"], {**SAMPLE_SETTINGS, "batch_size": 256}),
        (["--lr", "0.2"], {**SAMPLE_SETTINGS, "lr": 0.2}),
        (["--epochs", "10"], {**SAMPLE_SETTINGS, "epochs": 10}),
        (["--scale-batch"], {**SAMPLE_SETTINGS, "batch_size": 2 * SAMPLE_SETTINGS["batch_size"]}),
    ],
)
def test_the_sample_has_settings_of_its_own_which_flags_override(flags, expected):
    config = flags_of(flags)
    assert {name: getattr(config, name) for name in SAMPLE_SETTINGS} == expected


@pytest.mark.parametrize(
    ("flags", "expected"), [([], 48), (["--kvstore", "dist_sync", "--replicas", "2"], 96)]
)
def test_the_batch_is_scaled_by_the_replicas_of_all_processes(monkeypatch, flags, expected):
    environment = {"WORLD_SIZE": "3", "RANK": "1", "LOCAL_RANK": "1"}
    monkeypatch.setattr(os, "environ", {**os.environ, **environment})
    assert flags_of(["--scale-batch", "--batch-size", "16", *flags]).batch_size == expected


def test_the_whole_set_has_the_book_s_settings(monkeypatch, tmp_path, capsys):
    sample = load_fashion_mnist(SAMPLE)
    images, labels = sample.train.images.repeat(6, 1, 1, 1), sample.train.labels.repeat(6)
    whole = dataclasses.replace(sample, train=data.Split(images, labels))
    monkeypatch.setattr("fastreduce.training.load_fashion_mnist", lambda folder: whole)
    flags = ["--devices", "cpu", "--steps", "1", "--epochs", "1"]
    assert main(["train", *flags, "--out", str(tmp_path / "run")]) == 0
    config = metrics(tmp_path / "run")[0]["config"]
    assert (config["batch_size"], config["lr"]) == (256, 0.2)
    assert "sample" not in capsys.readouterr().out


def test_help_tells_the_defaults_of_all_models(capsys):
    with pytest.raises(SystemExit):
        main(["train", "--help"])
    text = capsys.readouterr().out
    for name in ("batch_size", "lr", "epochs"):
        flag = "--" + name.replace("_", "-")
        [said] = re.findall(rf"^  {flag} .*?(?=^  --)", text, re.DOTALL | re.MULTILINE)
        for settings in (SETTINGS, BY_MODEL):
            for model in settings.values():
                assert re.search(rf"\b{re.escape(format(model[name], 'g'))}\b", said), said


def test_a_training_that_diverges_ends_with_what_it_reached(capsys, tmp_path):
    flags = [*QUICK, "--lr", "1e30", "--steps", "4", "--out", str(tmp_path)]
    assert main(["train", *flags]) == 1
    out, err = capsys.readouterr()
    assert re.search(r"error: epoch 1, step 2: the loss of shard 0 is (nan|inf), wanted", err)
    assert "try a lower --lr" in err
    assert "no epoch ended: no accuracy, no learning curve" in out
    assert len(metrics(tmp_path)) == 1


def test_steps_that_are_left_out_are_counted(capsys, tmp_path):
    flags = [*QUICK, "--lr", "1e30", "--steps", "4", "--epochs", "1", "--out", str(tmp_path)]
    assert main(["train", *flags, "--skip-nonfinite"]) == 0
    assert "3 steps skipped, whose losses were not finite" in capsys.readouterr().out
    assert metrics(tmp_path)[1]["skipped"] == 3


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
