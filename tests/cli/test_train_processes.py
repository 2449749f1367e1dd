"""``fastreduce train --kvstore`` in processes like torchrun's, and in one test its own."""

import os
import shlex
import shutil
from pathlib import Path

import pytest
import torch
from finished_runs import parameters, reached
from processes import as_by_torchrun, torchrun

from fastreduce.cli import main
from fastreduce.training.data import SAMPLE

pytestmark = pytest.mark.sweep("processes")
RUN = ["--data", str(SAMPLE), "--devices", "cpu", "--steps", "3", "--batch-size", "9"]


def train(processes: int, *flags: str, status: int = 0) -> str:
    return as_by_torchrun(main, ["train", *flags], processes=processes, status=status)


def assert_same(one: Path, other: Path) -> None:
    assert reached(one) == reached(other)
    assert all(map(torch.equal, parameters(one), parameters(other)))


@pytest.mark.parametrize("processes", [2, 3])
def test_nobody_ahead_is_the_same_as_all_together(tmp_path, processes):
    flags = [*RUN, "--epochs", "2", "--model", "mlp"]
    sync, others, one = (tmp_path / name for name in ("sync", "async", "one"))
    train(processes, *flags, "--kvstore", "dist_sync", "--out", str(sync))
    store = ["--kvstore", "dist_async", "--staleness", "0"]
    said = train(processes, *flags, *store, "--out", str(others))
    assert said.count("results go to") == 1
    assert "replicas: 1, batch: 9, lr: 0.1, init: kaiming, kvstore: dist_async, stal" in said
    assert_same(sync, others)
    for rank in range(1, processes):
        assert all(map(torch.equal, parameters(sync), parameters(sync / f"rank{rank}")))
    # The gradient of a batch is that of one process, but for the rounding.
    assert main(["train", *flags, "--replicas", "1", "--out", str(one)]) == 0
    for own, wanted in zip(parameters(sync), parameters(one), strict=True):
        torch.testing.assert_close(own, wanted, rtol=1e-4, atol=1e-5)


def test_a_run_goes_on_from_the_last_step_that_all_have(tmp_path):
    flags = [*RUN, "--model", "mlp", "--kvstore", "dist_sync", "--checkpoint-every", "1"]
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    train(2, *flags, "--epochs", "2", "--out", str(whole))
    train(2, *flags, "--epochs", "1", "--out", str(stopped))
    (stopped / "rank1" / "checkpoints" / "step-000000003.safetensors").unlink()
    (stopped / "checkpoints" / "step-000000003.safetensors").write_bytes(b"")  # damaged
    later = stopped / "checkpoints" / "step-000000007.safetensors"
    later.write_bytes(b"")
    said = train(2, "--resume", str(stopped), "--epochs", "2", "--data", str(SAMPLE))
    assert "goes on from" in said and "step-000000002.safetensors" in said
    assert not later.exists()
    assert_same(whole, stopped)


def test_workers_at_their_own_speed_learn(tmp_path):
    flags = ["--data", str(SAMPLE), "--devices", "cpu", "--epochs", "1", "--steps", "60"]
    store = ["--model", "mlp", "--kvstore", "dist_async", "--staleness", "2"]
    torchrun("-m", "fastreduce", "train", *flags, *store, "--out", tmp_path)
    [(_, accuracy)] = reached(tmp_path)
    assert accuracy > 0.5


def test_a_loss_that_is_not_finite_is_said_with_its_rank(tmp_path):
    said = train(
        2, *RUN, "--kvstore", "dist_sync", "--lr", "1e30", "--out", str(tmp_path), status=1
    )
    assert "error: rank 0, epoch 1, step 2: the loss of shard 0 is nan" in said
    assert "error: rank 1, epoch 1, step 2: the loss of shard 0 is nan" in said


def test_as_many_processes_are_said_to_go_on(tmp_path):
    """One alone would be refused."""
    flags = [*RUN, "--model", "mlp", "--kvstore", "dist_sync", "--out", str(tmp_path)]
    said = train(2, *flags, "--lr", "1e30", "--checkpoint-every", "1", status=1)
    run = shlex.quote(str(tmp_path))
    again = f"torchrun --nproc-per-node 2 -m fastreduce train --resume {run} --lr RATE (if"
    assert f"to go on from there: {again}" in said


def with_a_seed_of_its_own(flags: list[str]) -> int:
    return main(["train", *flags, "--seed", os.environ["RANK"]])


@pytest.mark.parametrize("together", [["--kvstore", "dist_sync"], ["--backend", "gloo"]])
def test_processes_with_other_settings_are_refused(tmp_path, together):
    flags = [*RUN, "--model", "mlp", *together, "--out", str(tmp_path / "out")]
    said = as_by_torchrun(with_a_seed_of_its_own, flags, status=1)
    assert said.count("error: rank 1: found seed: 1, where rank 0 has 0; wanted the same") == 2
    assert not (tmp_path / "out").exists()


def test_a_local_store_in_several_processes_is_refused(tmp_path):
    said = train(2, *RUN, "--kvstore", "local", "--out", str(tmp_path / "out"), status=2)
    assert "kvstore: found local in 2 processes, wanted dist_sync or dist_async" in said
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("before", "now"), [(2, 3), (3, 2), (2, 1), (1, 2)])
def test_another_number_of_processes(tmp_path, before, now):
    flags = [*RUN, "--model", "mlp", "--kvstore", "dist_sync", "--epochs", "1"]
    train(before, *flags, "--out", str(tmp_path))
    said = train(now, "--resume", str(tmp_path), "--data", str(SAMPLE), status=1)
    assert f"was {before} when the run was saved, and is {now} now; each goes on with its" in said
    assert f"start as many; on one machine: torchrun --nproc-per-node {before}\n" in said


def test_a_rank_whose_checkpoints_are_lost(tmp_path):
    flags = [*RUN, "--model", "mlp", "--kvstore", "dist_sync", "--epochs", "1"]
    train(2, *flags, "--out", str(tmp_path))
    shutil.rmtree(tmp_path / "rank1")
    said = train(2, "--resume", str(tmp_path), "--data", str(SAMPLE), status=1)
    assert f"{tmp_path / 'rank1' / 'checkpoints'}: found no checkpoint" in said


def test_no_step_that_all_have(tmp_path):
    flags = [*RUN, "--model", "mlp", "--kvstore", "dist_sync", "--epochs", "1"]
    train(2, *flags, "--checkpoint-every", "2", "--out", str(tmp_path))
    (tmp_path / "checkpoints" / "step-000000002.safetensors").unlink()
    (tmp_path / "rank1" / "checkpoints" / "step-000000003.safetensors").unlink()
    said = train(2, "--resume", str(tmp_path), "--data", str(SAMPLE), status=1)
    assert "no step of which all ranks have a whole checkpoint (rank 0: 3; rank 1: 2)" in said
