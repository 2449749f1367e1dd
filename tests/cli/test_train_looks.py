"""What `fastreduce train` shows beside its own lines."""

import json
import re
import sys
from pathlib import Path

import pytest

from fastreduce.cli import main
from fastreduce.training import Config, Trainer, compare, sweep, tracing
from fastreduce.training.data import SAMPLE
from fastreduce.training.sweep import Outcome, table
from fastreduce.training.tracing import SKIPPED_STEPS, TRACED_STEPS

QUICK = ["--data", str(SAMPLE), "--devices", "cpu", "--steps", "3", "--batch-size", "8"]


def train(tmp_path, *flags, epochs=1):
    command = ["train", *QUICK, "--epochs", str(epochs), "--out", str(tmp_path / "run"), *flags]
    return main(command)


class TestCompare:
    @pytest.mark.parametrize(
        ("name", "verdict"),
        [
            ("loop", r"(the same bits|parameters within \d\.\de-\d+)"),
            ("single", r"parameters within \d\.\de-0[6-9]"),
        ],
    )
    def test_both_are_trained_and_agree(self, capsys, tmp_path, name, verdict):
        assert train(tmp_path, "--compare", name, epochs=2) == 0
        lines = capsys.readouterr().out.splitlines()
        own = [re.search(r"loss (\d\.\d+)", line)[1] for line in lines if line[:5] == "epoch"]
        others = [re.search(r"loss (\d\.\d+)", x)[1] for x in lines if x.startswith(f"  {name}:")]
        assert own == others and len(own) == 2
        [last] = [line for line in lines if line.startswith(f"{name}:")]
        assert re.fullmatch(rf"{name}: \d+\.\d\d times as long per epoch, {verdict}", last)

    def test_control_one_that_trains_another_does_not_agree(self, capsys, tmp_path, monkeypatch):
        def other(config, _):
            return config.changed(seed=1), compare.learner

        monkeypatch.setattr(compare, "rival", other)
        assert train(tmp_path, "--compare", "single") == 0
        said = capsys.readouterr().out
        assert float(re.search(r"parameters within (\S+)", said)[1]) > 0.1


def test_a_profile_has_a_range_for_each_bucket_and_no_more_than_its_steps(capsys, tmp_path):
    steps = SKIPPED_STEPS + TRACED_STEPS
    assert train(tmp_path, "--profile", "--steps", str(steps)) == 0
    trace = tmp_path / "run" / "trace.json"
    assert str(trace) in capsys.readouterr().out
    events = json.loads(trace.read_text())["traceEvents"]
    names = [event["name"] for event in events if event.get("ph") == "X"]
    assert sum(name.endswith("SumOfReplicas, bucket 0") for name in names) >= TRACED_STEPS
    assert sum(name.startswith("ProfilerStep#") for name in names) == TRACED_STEPS


def test_a_profile_of_too_few_steps_is_said(capsys, tmp_path, caplog):
    assert train(tmp_path, "--profile", "--steps", str(SKIPPED_STEPS)) == 0
    trace = tmp_path / "run" / "trace.json"
    assert not trace.exists() and str(trace) not in capsys.readouterr().out
    assert f"{trace}: found fewer than {SKIPPED_STEPS + 1} steps" in caplog.text


def test_a_profile_that_is_cut_short_leaves_no_half_of_it(tmp_path, monkeypatch):
    def interrupted(_, path):
        Path(path).write_text('{"traceEvents": [')
        raise KeyboardInterrupt

    monkeypatch.setattr(tracing.profile, "export_chrome_trace", interrupted)
    assert train(tmp_path, "--profile", "--steps", str(SKIPPED_STEPS + TRACED_STEPS)) == 130
    assert [x.name for x in (tmp_path / "run").iterdir()] == ["metrics.jsonl"]


class TestSweep:
    def test_each_number_of_replicas_at_each_rate(self, capsys, tmp_path, monkeypatch):
        titles, real = set(), sweep.write

        def write(outcomes, folder, title):
            titles.add(title)
            return real(outcomes, folder, title)

        monkeypatch.setattr(sweep, "write", write)
        assert train(tmp_path, "--lr-sweep", "0.1", "1e30", "--model", "mlp") == 0
        found = json.loads((tmp_path / "run" / "lr_sweep.json").read_text())
        wanted = [(k, 8 * k, lr) for k in (1, 2, 4) for lr in (0.1, 1e30)]
        assert [(x["replicas"], x["batch_size"], x["lr"]) for x in found] == wanted
        assert all((x["test_accuracy"] is None) == (x["lr"] > 1) for x in found)
        assert (tmp_path / "run" / "lr_sweep.png").read_bytes().startswith(b"\x89PNG")
        assert "diverged" in capsys.readouterr().out
        assert titles == {"mlp after 1 epoch"}

    def test_what_is_interrupted_keeps_the_trainings_that_have_ended(
        self, capsys, tmp_path, monkeypatch
    ):
        real, trainings = Trainer.epochs, iter(range(3))

        def interrupted(self):
            if next(trainings, None) is None:
                raise KeyboardInterrupt
            return real(self)

        monkeypatch.setattr(Trainer, "epochs", interrupted)
        assert train(tmp_path, "--lr-sweep", "0.1", "0.2", "--model", "mlp") == 130
        found = json.loads((tmp_path / "run" / "lr_sweep.json").read_text())
        assert [(x["replicas"], x["lr"]) for x in found] == [(1, 0.1), (1, 0.2), (2, 0.1)]
        names = " ".join(str(tmp_path / "run" / f"lr_sweep.{kind}") for kind in ("json", "png"))
        assert f"written: {names}\n" in capsys.readouterr().out
        monkeypatch.setattr(Trainer, "epochs", interrupted)
        assert train(tmp_path, "--lr-sweep", "0.1", "--model", "mlp") == 1
        assert "found an earlier run's lr_sweep.json" in capsys.readouterr().err

    def test_its_folder_is_its_own_from_the_beginning(self, tmp_path, monkeypatch, capsys):
        statuses = []

        def meanwhile(self):
            if not statuses:
                statuses.append(None)
                statuses[0] = train(tmp_path)
            raise KeyboardInterrupt

        monkeypatch.setattr(Trainer, "epochs", meanwhile)
        assert train(tmp_path, "--lr-sweep", "0.1", "--model", "mlp") == 130
        assert statuses == [1]
        assert "found an earlier run's lr_sweep.json" in capsys.readouterr().err
        assert not any((tmp_path / "run").iterdir())

    def test_the_table(self):
        points = [Outcome(1, 16, 0.1, 0.5), Outcome(2, 32, 0.1, None), Outcome(1, 16, 0.25, 0.625)]
        assert table(points).splitlines() == [
            "      lr  1 x   16  2 x   16   (replicas x batch of each: test accuracy)",
            "     0.1     0.500  diverged",
            "    0.25     0.625         -",
        ]


def test_tensorboard_that_is_missing_is_said_before_the_run_begins(capsys, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    assert train(tmp_path, "--tensorboard") == 1
    assert "pip install tensorboard" in capsys.readouterr().err
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


def test_tensorboard_gets_each_epoch(tmp_path, monkeypatch):
    seen = []

    class SummaryWriter:
        def __init__(self, folder):
            seen.append(folder)

        def add_scalar(self, name, _, epoch):
            seen.append((name, epoch))

        def flush(self):
            pass

        def close(self):
            seen.append("closed")

    module = type(sys)("torch.utils.tensorboard")
    module.SummaryWriter = SummaryWriter
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", module)
    assert train(tmp_path, "--tensorboard", epochs=2) == 0
    assert seen[0] == tmp_path / "run" / "tensorboard" and seen[-1] == "closed"
    assert ("loss", 1) in seen and ("test accuracy", 2) in seen


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--compare", "ddp"], "compare: found 'ddp', wanted one of loop, single, nn"),
        (["--compare", "nn"], "nn.DataParallel wants a GPU for each replica"),
        (["--compare", "loop", "--model", "mlp"], "compare with loop: model: found 'mlp'"),
        (["--lr-sweep", "0.1", "-1"], "lr: found -1.0, wanted a number above 0"),
        (["--lr-sweep", "0.1", "0.2", "1e-1"], "lr-sweep: found 0.1 twice, wanted each rate once"),
        (["--lr-sweep", "1e30", "--skip-nonfinite"], "skip-nonfinite: found together with lr-sw"),
        (["--lr-sweep"], "--lr-sweep: expected at least one argument"),
        (["--lr-sweep", "1", "--profile"], "--profile: found together with --lr-sweep"),
        (["--lr-sweep", "1", "--lr", "2"], "--lr: found together with --lr-sweep"),
        (["--lr-sweep", "1", "--devices", "cpu", "cpu"], "devices: found cpu cpu with --lr-sweep"),
        (["--compare", "single", "--profile"], "compare: found together with --profile, which sl"),
        (["--lr-sweep", "1", "--reproducible", "2"], "found 2 micro-shards for 4 replicas"),
        (["--graph"], "graph: found devices cpu, cpu, wanted GPUs"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_written(capsys, tmp_path, flags, words):
    with pytest.raises(SystemExit) as end:
        train(tmp_path, *flags)
    assert end.value.code == 2
    assert words in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_nn_is_there_for_gpus():
    import torch

    gpus = Config(devices=(torch.device("cuda:0"), torch.device("cuda:1")))
    assert compare.rival(gpus, "nn")[1] is compare.NNLearner
    with pytest.raises(ValueError, match="found nn on cuda:0, cuda:0"):
        compare.rival(gpus.changed(devices=gpus.devices[:1] * 2), "nn")
