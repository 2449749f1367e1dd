"""A run that is stopped at any moment goes on with the bits of one that was not."""

import dataclasses
import errno
import json
import os
import random
import shlex
import shutil
import signal
import time

import pytest
import torch
from processes import begin
from sweeps import one_in

from fastreduce.cli import main
from fastreduce.parallel.losses import NonFiniteLoss
from fastreduce.training import CheckpointError, Config, Split, Trainer, checkpoint
from fastreduce.training.checkpoint import read
from fastreduce.training.data import SAMPLE

CPU = torch.device("cpu")
TWO = Config(devices=(CPU, CPU), batch_size=2, epochs=3)
CONFIGS = {
    "DataParallel": TWO,
    "the book's functions": dataclasses.replace(TWO, allreduce="ring"),
    "BatchNorm": dataclasses.replace(TWO, model="resnet18", batch_size=6, epochs=2),
    "a key-value store": dataclasses.replace(TWO, kvstore="local"),
    "micro-shards": dataclasses.replace(TWO, model="mlp", reproducible=2),
    "a falling rate": dataclasses.replace(TWO, lr_schedule="linear"),
    "momentum": dataclasses.replace(TWO, momentum=0.9, weight_decay=5e-4),
    "bf16": dataclasses.replace(TWO, precision="bf16"),
}


class Stopped(Exception):
    pass


def trainer(config, data, folder, every=None):
    return Trainer(config, data, progress=False, checkpoints=folder, checkpoint_every=every)


def stop_after(made, steps):
    """Let a trainer take so many steps and not more."""
    step, taken = made.learner.step, iter(range(steps))

    def once(X, y):
        if next(taken, None) is None:
            raise Stopped
        return step(X, y)

    made.learner.step = once
    with pytest.raises(Stopped):
        list(made.epochs())


def result(made, epochs):
    tensors = made.learner.state()["model"].state_dict().values()
    return [x.clone() for x in tensors], [(e.epoch, e.loss, e.test_accuracy) for e in epochs]


def assert_same(one, other):
    assert one[1] == other[1]
    assert all(torch.equal(a, b) for a, b in zip(one[0], other[0], strict=True))


@pytest.mark.parametrize("name", one_in(3, list(CONFIGS), "cases"))
def test_it_goes_on_with_the_same_bits(tiny, tmp_path, name):
    config = CONFIGS[name]
    whole = Trainer(config, tiny, progress=False)
    wanted = result(whole, list(whole.epochs()))
    # In the middle of an epoch of five or two steps; the last checkpoint is of an earlier step.
    stop_after(trainer(config, tiny, tmp_path, every=2), 4 if config.batch_size == 2 else 3)
    again = trainer(config, tiny, tmp_path)
    past = again.restore(read(tmp_path))
    assert_same(result(again, [*past, *again.epochs()]), wanted)


def test_with_other_options_of_sgd(tiny, tmp_path):
    stop_after(trainer(CONFIGS["momentum"], tiny, tmp_path), 6)
    other = {"lr": 0.05, "momentum": 0.5, "weight_decay": 0.0}
    again = trainer(TWO.changed(**other), tiny, tmp_path)
    again.restore(read(tmp_path))
    [group] = again.learner.optimizer.param_groups
    assert other.items() <= group.items()
    assert again.learner.optimizer.state  # what SGD keeps is the checkpoint's


def test_with_another_number_of_replicas(tiny, tmp_path):
    one = CONFIGS["micro-shards"]
    whole = Trainer(one, tiny, progress=False)
    wanted = result(whole, list(whole.epochs()))
    stop_after(trainer(one, tiny, tmp_path), 6)
    again = trainer(one.changed(devices=(CPU,)), tiny, tmp_path)
    past = again.restore(read(tmp_path))
    assert_same(result(again, [*past, *again.epochs()]), wanted)


def test_control_without_what_is_restored_the_bits_are_others(tiny, tmp_path):
    whole = Trainer(TWO, tiny, progress=False)
    wanted = result(whole, list(whole.epochs()))
    stop_after(trainer(TWO, tiny, tmp_path), 6)
    again = trainer(TWO, tiny, tmp_path)
    past = again.restore(read(tmp_path))
    again._order_state = torch.Generator().get_state()  # the images in another order
    with pytest.raises(AssertionError):
        assert_same(result(again, [*past, *again.epochs()]), wanted)


def test_of_other_data_or_another_model(tiny, tmp_path):
    list(trainer(TWO.changed(epochs=1), tiny, tmp_path).epochs())
    found = read(tmp_path)
    other = dataclasses.replace(tiny, test=Split(tiny.test.images, tiny.test.labels.flip(0)))
    with pytest.raises(CheckpointError, match="found a run on other images than those of tiny"):
        Trainer(TWO, other).restore(found)
    with pytest.raises(CheckpointError, match=r"model: found no '1\.weight'"):
        Trainer(TWO.changed(model="mlp"), tiny).restore(found)


@pytest.mark.parametrize("skip", [False, True])
def test_a_loss_that_is_not_finite_keeps_the_last_good_checkpoint(tiny, tmp_path, skip):
    diverges = TWO.changed(lr=1e30, skip_nonfinite=skip)
    made = trainer(diverges, tiny, tmp_path, every=1)
    if skip:
        first = next(made.epochs())
        assert first.skipped == 4 and torch.tensor(first.loss).isfinite()
    else:
        with pytest.raises(ValueError, match="epoch 1, step 2: the loss of shard 0 is"):
            list(made.epochs())
        assert read(tmp_path).step == 1


def test_a_step_that_is_skipped_leaves_nothing_in_batchnorm(tiny, tmp_path):
    made = trainer(CONFIGS["BatchNorm"].changed(skip_nonfinite=True), tiny, tmp_path)
    state = made.learner.state()["model"].state_dict()
    before = {name: x.clone() for name, x in state.items()}
    X, y = tiny.train.images[:6] / 255, tiny.train.labels[:6]
    with pytest.raises(NonFiniteLoss):
        made.learner.step(X * torch.inf, y)
    assert [name for name, x in state.items() if not torch.equal(x, before[name])] == []
    made.learner.step(X, y)
    assert [name for name, x in state.items() if torch.equal(x, before[name])] == []


QUICK = ["--data", str(SAMPLE), "--devices", "cpu", "--steps", "3", "--batch-size", "8"]


def lines(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_what_is_removed_in_mid_run_is_said(capsys, tmp_path, monkeypatch):
    real = Trainer.epochs

    def removing(self):
        for epoch in real(self):
            yield epoch
            shutil.rmtree(tmp_path / "run")

    flags = [*QUICK, "--epochs", "3", "--out", str(tmp_path / "run")]
    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "epochs", removing)
        assert main(["train", *flags]) == 1
    out, err = capsys.readouterr()
    assert err == f"fastreduce: error: {tmp_path}/run/metrics.jsonl: No such file or directory\n"
    assert (
        f"to go on from there: fastreduce train --resume {shlex.quote(str(tmp_path / 'run'))}"
        in out
    )
    assert main(["train", "--data", str(SAMPLE), "--resume", str(tmp_path / "run")]) == 0


def test_a_full_disk_is_said_and_the_run_goes_on_later(capsys, tmp_path, monkeypatch):
    real, calls = checkpoint.os.fsync, iter(range(4))

    def full(file):
        if next(calls, None) is None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(file)

    flags = [*QUICK, "--epochs", "3", "--out", str(tmp_path)]
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint.os, "fsync", full)  # of a file and its folder, for each epoch
        assert main(["train", *flags]) == 1
    err = capsys.readouterr().err
    assert "could not be written (No space left on device); earlier ones are kept" in err
    assert read(tmp_path / "checkpoints").step == 6
    assert main(["train", "--data", str(SAMPLE), "--resume", str(tmp_path)]) == 0
    assert [line.get("epoch") for line in lines(tmp_path)] == [None, 1, 2, 3]


class TestCommand:
    def test_it_goes_on_and_writes_on(self, capsys, tmp_path):
        assert main(["train", *QUICK, "--epochs", "1", "--out", str(tmp_path)]) == 0
        data = ["--data", str(SAMPLE)]
        assert main(["train", *data, "--resume", str(tmp_path), "--epochs", "2"]) == 0
        out = capsys.readouterr().out
        assert f"goes on from {tmp_path}/checkpoints/step-000000003.safetensors" in out
        assert [line.get("epoch") for line in lines(tmp_path)] == [None, 1, 2]
        assert lines(tmp_path)[0]["config"]["steps"] == 3

    @pytest.mark.parametrize(
        ("flags", "words"),
        one_in(
            3,
            [
                (["--seed", "3"], "--seed: found together with --resume"),
                (
                    ["--model", "mlp", "--compile"],
                    "--model, --compile: found together with --resume",
                ),
                (["--scale-batch"], "--scale-batch: found together with --resume"),
                (["--out", "x"], "--out: found together with --resume"),
                (["--epochs", "0"], "epochs: found 0"),
                (["--replicas", "0"], "replicas: found 0"),
            ],
            "cases",
        ),
    )
    def test_other_settings_are_refused(self, capsys, tmp_path, flags, words):
        assert main(["train", *QUICK, "--epochs", "1", "--out", str(tmp_path)]) == 0
        before = (tmp_path / "metrics.jsonl").read_bytes()
        with pytest.raises(SystemExit) as end:
            main(["train", "--resume", str(tmp_path), *flags])
        assert end.value.code == 2
        assert words in capsys.readouterr().err
        assert (tmp_path / "metrics.jsonl").read_bytes() == before

    @pytest.mark.parametrize(
        ("change", "words"),
        [
            (lambda config: {**config, "devices": ["cuda:7"]}, "devices: found 'cuda:7'"),
            (
                lambda config: {**config, "dampening": 0.9},
                "found the settings dampening, which this",
            ),
            (lambda config: None, "found checkpoints without settings"),
        ],
    )
    def test_a_run_that_cannot_go_on_here(self, capsys, tmp_path, change, words):
        assert main(["train", *QUICK, "--epochs", "1", "--out", str(tmp_path)]) == 0
        found = read(tmp_path / "checkpoints")
        state = {**found.state, "config": change(found.state["config"])}
        checkpoint.save(tmp_path / "checkpoints", state, step=found.step)
        with pytest.raises(SystemExit):
            main(["train", "--resume", str(tmp_path)])
        assert words in capsys.readouterr().err

    def test_without_a_run(self, capsys, tmp_path):
        assert main(["train", "--resume", str(tmp_path)]) == 1
        assert f"{tmp_path}/checkpoints: found no checkpoint" in capsys.readouterr().err

    def test_on_other_data(self, capsys, tmp_path, write_set):
        assert main(["train", *QUICK, "--epochs", "1", "--out", str(tmp_path / "run")]) == 0
        other = str(write_set(tmp_path / "other"))
        assert main(["train", "--data", other, "--resume", str(tmp_path / "run")]) == 1
        assert "found a run on other images" in capsys.readouterr().err


def killed_at_random(folder, seed, *flags):
    """Start a run, kill it at a random moment, go on, and so forth until it ends; how often."""
    draws, kills = random.Random(seed), 0
    said = folder.with_suffix(".txt")
    while True:
        said.write_text("")
        begun = any(folder.glob("checkpoints/step-*s"))
        own = ["--resume", str(folder)] if begun else [*flags, "--out", str(folder)]
        run = ["train", "--data", str(SAMPLE), *own, "--checkpoint-every", "1"]
        process = begin(main, run, said=said)
        while process.is_alive() and said.read_text().count("\n") < 2:
            time.sleep(0.001)
        time.sleep(draws.uniform(0, 0.3))
        if process.is_alive() and kills < 20:
            process.kill()
            kills += 1
        process.join(300)
        if process.exitcode == 0:
            return kills
        assert process.exitcode == -signal.SIGKILL, said.read_text()
        if not any(folder.glob("checkpoints/step-*s")):
            shutil.rmtree(folder, ignore_errors=True)  # killed before the first was whole


@pytest.mark.sweep("killed 20 times")
def test_killed_at_random_moments(tmp_path):
    # The rate is named, as its default is another where the sources lie beside what is installed:
    # the sample is then one folder for this process and another for those that are killed.
    flags = ["--epochs", "3", "--steps", "60", "--batch-size", "16", "--devices", "cpu"]
    flags += ["--lr", "0.08"]
    assert main(["train", "--data", str(SAMPLE), *flags, "--out", str(tmp_path / "whole")]) == 0
    assert killed_at_random(tmp_path / "killed", 0, *flags) >= 10
    one, other = (read(tmp_path / name / "checkpoints") for name in ("whole", "killed"))
    assert one.step == other.step == 180
    for a, b in zip(one.state["model"].values(), other.state["model"].values(), strict=True):
        assert torch.equal(a, b)
    losses = [[line["loss"] for line in lines(tmp_path / x)[1:]] for x in ("whole", "killed")]
    assert losses[0] == losses[1]
