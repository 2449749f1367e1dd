"""``fastreduce train`` by DistributedDataParallel, in the processes that torchrun starts."""

from pathlib import Path

import pytest
import torch
from finished_runs import parameters, reached
from processes import as_by_torchrun, torchrun
from subprocesses import output_of

from fastreduce.cli import main
from fastreduce.training.data import SAMPLE

DATA = ["--data", str(SAMPLE)]
RUN = [*DATA, "--devices", "cpu", "--steps", "4", "--batch-size", "9", "--model", "mlp"]
KILLED = Path(__file__).with_name("killed_train.py")


def test_one_process_is_a_group_of_one(capsys, tmp_path):
    for name, flags in {"one": ["--replicas", "1"], "group": ["--backend", "gloo"]}.items():
        assert main(["train", *RUN, *flags, "--epochs", "1", "--out", str(tmp_path / name)]) == 0
    assert "replicas: 1, batch: 9, lr: 0.1, init: kaiming, backend: gloo, processes: 1" in (
        capsys.readouterr().out
    )
    torch.testing.assert_close(parameters(tmp_path / "group"), parameters(tmp_path / "one"))


@pytest.mark.sweep("processes")
def test_the_group_ends_with_the_run(tmp_path):
    """Threads of Gloo's that free tensors while the interpreter ends would abort it."""
    flags = [*RUN, "--backend", "gloo", "--epochs", "1", "--out", str(tmp_path)]
    threads = output_of(
        f"""
        import glob, torch.distributed as dist
        from fastreduce.cli import main

        during, destroy = [], dist.destroy_process_group
        names = lambda: [open(path).read().strip() for path in glob.glob("/proc/self/task/*/comm")]
        dist.destroy_process_group = lambda: (during.extend(names()), destroy())
        main(["train", *{flags}])
        print([threads.count("pt_gloo_runloop") for threads in (during, names())])
        """
    )
    assert threads.endswith("[2, 0]")


@pytest.mark.sweep("processes")
def test_a_rank_that_is_killed_changes_no_bit(tmp_path):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    flags = [*RUN, "--epochs", "2", "--checkpoint-every", "2"]
    said = as_by_torchrun(main, ["train", *flags, "--out", str(whole)])
    assert said.count("results go to") == 1 and "backend: fastreduce, processes: 2" in said
    wanted = ["checkpoints", "learning_curve.png", "metrics.jsonl"]
    assert sorted(path.name for path in whole.iterdir()) == wanted

    # Rank 1 has the sums of step 7, to which rank 0 came after it had written the checkpoint of 6.
    said = torchrun(KILLED, 8, *flags, "--out", killed, restarts=1)
    assert f"goes on from {killed}/checkpoints/step-000000006.safetensors" in said
    assert reached(killed) == reached(whole)
    assert all(map(torch.equal, parameters(killed), parameters(whole)))

    # Another number of processes goes on from it, too: here one, without torchrun.
    assert main(["train", *DATA, "--resume", str(whole), "--epochs", "3"]) == 0
    assert reached(whole)[:2] == reached(killed) and len(reached(whole)) == 3


@pytest.mark.sweep("processes")
def test_killed_before_the_first_checkpoint_it_begins_again(tmp_path):
    flags = [*RUN, "--epochs", "1", "--backend", "gloo", "--out", tmp_path / "run"]
    said = torchrun(KILLED, 2, *flags, restarts=1)
    assert said.count("results go to") == 2 and len(reached(tmp_path / "run")) == 1


@pytest.mark.sweep("processes")
def test_an_earlier_run_is_not_taken_for_one_that_is_started_again(tmp_path):
    flags = [*RUN, "--epochs", "1", "--out", str(tmp_path)]
    assert main(["train", *flags, "--replicas", "1"]) == 0
    before = (tmp_path / "metrics.jsonl").read_bytes()
    said = torchrun("-m", "fastreduce", "train", *flags, restarts=1, status=1)
    assert said.count("found an earlier run's metrics.jsonl") == 4  # two ranks, twice
    assert (tmp_path / "metrics.jsonl").read_bytes() == before
