"""`fastreduce train --resume` with other settings, and with other folders than that of a run."""

import argparse
import json
import shlex

import pytest
import torch
from sweeps import one_in

from fastreduce.cli import main, train, train_config
from fastreduce.training import Config, Trainer, processes
from fastreduce.training.checkpoint import read
from fastreduce.training.data import SAMPLE, load_fashion_mnist

DATA = ["--data", str(SAMPLE)]
QUICK = [*DATA, "--devices", "cpu", "--steps", "3", "--batch-size", "8", "--model", "mlp"]


@pytest.fixture
def run(capsys, tmp_path):
    """The folder of a run of one epoch."""
    assert (
        main(["train", *QUICK, "--lr", "0.1", "--epochs", "1", "--out", str(tmp_path / "r")]) == 0
    )
    capsys.readouterr()
    return tmp_path / "r"


DEEP = "checkpoints/step-000000003.safetensors"


def resumed(folder, *flags):
    return main(["train", *DATA, "--resume", str(folder), *flags])


def kept(folder):
    return read(folder / "checkpoints").state["config"]


def test_a_training_that_diverges_is_said_to_go_on_at_another_rate(capsys, tmp_path):
    """With the same one it would come to the same loss."""
    flags = [*QUICK, "--lr", "1e30", "--checkpoint-every", "1", "--out", str(tmp_path)]
    assert main(["train", *flags]) == 1
    out = capsys.readouterr().out
    assert f"{tmp_path}/checkpoints" in out
    again = f"fastreduce train --resume {shlex.quote(str(tmp_path))} --lr RATE (if"
    assert f"to go on from there: {again}" in out


def test_a_run_whose_loss_was_not_finite_goes_on_at_a_lower_rate(capsys, run):
    assert resumed(run, "--epochs", "2", "--lr", "1e30") == 1
    out, err = capsys.readouterr()
    assert "changed: lr: 0.1 -> 1e+30, epochs: 1 -> 2" in out
    assert "epoch 2, step 2: the loss of shard 0 is" in err and "try a lower --lr" in err
    assert f"fastreduce train --resume {shlex.quote(str(run))} --lr RATE (if" in out
    assert resumed(run, "--epochs", "2", "--lr", "0.05") == 0
    assert "changed: lr: 0.1 -> 0.05, epochs: 1 -> 2" in capsys.readouterr().out
    first, *epochs = (run / "metrics.jsonl").read_text().splitlines()
    assert json.loads(first)["config"]["lr"] == kept(run)["lr"] == 0.05
    assert len(epochs) == 2


def test_what_is_said_to_go_on_can_be_typed_as_it_stands(capsys, monkeypatch, run):
    """The shell would take a name with a space for two, as it is."""
    spaced = run.rename(run.with_name("my run"))
    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "epochs", interrupted)
        assert resumed(spaced) == 130
    said = capsys.readouterr().out.splitlines()[-1].removeprefix("to go on from there: ")
    command, *typed = shlex.split(said)
    assert command == "fastreduce" and main([*typed, *DATA]) == 0

    assert resumed(spaced / "checkpoints") == 1
    meant = capsys.readouterr().err.split("did you mean ")[1].removesuffix("?\n")
    assert main(["train", *shlex.split(meant), *DATA]) == 0


def interrupted(trainer):
    raise KeyboardInterrupt


def test_fewer_epochs_than_have_ended_are_refused(capsys, run):
    """metrics.jsonl would have more of them than its settings."""
    assert resumed(run, "--epochs", "2") == 0
    before = (run / "metrics.jsonl").read_text()
    capsys.readouterr()
    assert resumed(run, "--epochs", "1") == 1
    out, err = capsys.readouterr()
    assert err == (
        "fastreduce: error: --epochs 1: found 2 epochs that have ended, wanted no fewer\n"
    )
    assert not out and (run / "metrics.jsonl").read_text() == before
    assert resumed(run, "--epochs", "2") == 0


def test_or_leaves_such_steps_out(capsys, run):
    assert resumed(run, "--epochs", "2", "--lr", "1e30", "--skip-nonfinite") == 0
    out = capsys.readouterr().out
    assert "changed: lr: 0.1 -> 1e+30, epochs: 1 -> 2, skip_nonfinite: False -> True" in out
    assert "2 steps skipped, whose losses were not finite" in out
    assert resumed(run) == 0
    assert "changed:" not in capsys.readouterr().out
    assert kept(run)["skip_nonfinite"]


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--lr", "-1"], "lr: found -1.0, wanted a number above 0"),
        (["--skip-nonfinite"], "skip-nonfinite: found with kvstore 'local', whose steps are not"),
        (
            ["--batch-size", "4"],
            "keeps its settings, all but those that --help lists for --resume;",
        ),
    ],
)
def test_what_a_run_cannot_change(capsys, tmp_path, flags, words):
    started = [*QUICK, "--epochs", "1", "--kvstore", "local", "--out", str(tmp_path / "run")]
    assert main(["train", *started]) == 0
    with pytest.raises(SystemExit) as end:
        resumed(tmp_path / "run", *flags)
    assert end.value.code == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    "settings", one_in(3, [{}, {"allreduce": "ring"}, {"kvstore": "local"}], "cases")
)
def test_the_rate_is_the_one_that_is_used(tmp_path, settings):
    """A step of half the rate changes the parameters by half, whatever the checkpoint's rate."""
    config = Config((torch.device("cpu"),) * 2, batch_size=8, steps=1, epochs=1, **settings)
    data = load_fashion_mnist(SAMPLE)
    first = Trainer(config, data, progress=False, checkpoints=tmp_path)
    list(first.epochs())
    before = [x.clone() for x in first.learner.state()["model"].state_dict().values()]

    def changes(lr):
        made = Trainer(config.changed(lr=lr, epochs=2), data, progress=False)
        made.restore(read(tmp_path))
        list(made.epochs())
        after = made.learner.state()["model"].state_dict().values()
        return [a - b for a, b in zip(after, before, strict=True)]

    assert any(x.any() for x in changes(0.2))
    for half, whole in zip(changes(0.1), changes(0.2), strict=True):
        torch.testing.assert_close(2 * half, whole, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize(
    ("before", "flags", "expected"),
    [
        ("cpu", [], "cpu cpu"),
        ("cpu", ["--replicas", "4"], "cpu cpu cpu cpu"),
        ("cpu", ["--devices", "cpu"], "cpu cpu"),
        ("cpu", ["--devices", "cpu", "--replicas", "3"], "cpu cpu cpu"),
        ("cpu", ["--devices", "cuda:1"], "cuda:1 cuda:1"),
        ("cpu", ["--devices", "cuda:0", "cuda:1", "cuda:2"], "cuda:0 cuda:1 cuda:2"),
        ("cuda:1", ["--replicas", "3"], "cuda:1 cuda:1 cuda:1"),
    ],
)
def test_devices_or_replicas_that_are_not_given_stay(monkeypatch, before, flags, expected):
    """On a machine with GPUs, as it were."""
    monkeypatch.setattr(
        processes,
        "usable_devices",
        lambda names=None: list(map(torch.device, names or ["cuda:0", "cuda:1", "cuda:2"])),
    )
    monkeypatch.setattr("fastreduce.devices.usable_devices", lambda _: None)
    parser = argparse.ArgumentParser()
    train.add(parser.add_subparsers())
    args = parser.parse_args(["train", "--resume", "r", *flags])
    config = Config((torch.device(before),) * 2, batch_size=8).to_json()
    found = train_config.resumed_config(args, config).devices
    assert " ".join(map(str, found)) == expected


@pytest.mark.parametrize("name", ["checkpoints", "metrics.jsonl", DEEP])
def test_a_place_that_is_too_deep(capsys, run, name):
    assert resumed(run / name) == 1
    err = capsys.readouterr().err
    assert (
        "found no checkpoint, wanted step-*.safetensors there; "
        f"did you mean --resume {shlex.quote(str(run))}?" in err
    )


def test_a_folder_that_has_nothing_to_do_with_a_run(capsys, tmp_path):
    assert resumed(tmp_path / "a" / "b") == 1
    assert "did you mean" not in capsys.readouterr().err
