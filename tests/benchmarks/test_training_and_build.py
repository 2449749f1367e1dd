"""benchmarks/training.py and build.py: checked before timed, and what ninja's log says."""

import json
import sys
from pathlib import Path

import pytest
import torch
import training
from build import build, table, units

import fastreduce.training

X, Y = torch.rand(4, 1, 28, 28), torch.tensor([0, 1, 2, 3])


class TestTraining:
    def test_all_contenders_train_one_model(self):
        training.check(training.contenders(2), X, Y)

    def test_control_one_that_trains_another(self):
        def forgets_a_replica(X, y, replicas, devices):
            fastreduce.training.train_batch(X, y, replicas, devices, 0.2, allreduce=lambda _: None)

        steps = training.contenders(1) | {"wrong": (2, forgets_a_replica)}
        with pytest.raises(fastreduce.training.ReplicasDiffer):
            training.check(steps, X, Y)

    def test_control_another_rate(self):
        def too_fast(X, y, replicas, devices):
            fastreduce.training.train_batch(X, y, replicas, devices, 0.3)

        with pytest.raises(AssertionError, match="wrong: parameter 0 is not the bare loop's"):
            training.check(training.contenders(2) | {"wrong": (2, too_fast)}, X, Y)

    def test_what_it_writes(self, tmp_path, monkeypatch, capsys):
        monkeypatch.setattr(training, "batch", lambda: (X, Y))
        flags = ["-k", "2", "-n", "1", "--out", str(tmp_path / "out")]
        monkeypatch.setattr(sys, "argv", ["training.py", *flags])
        training.main()
        rows = json.loads((tmp_path / "out.json").read_text())["rows"]
        assert [(x["contender"], x["replicas"]) for x in rows] == [
            ("trainer", 2),
            ("trainer, loop", 2),
            ("bare loop", 2),
            ("one replica", 1),
        ]
        assert all(x["epoch_s"] == x["step_s"] * 235 for x in rows)
        assert (tmp_path / "out.png").stat().st_size > 0
        assert "# the parameters after three steps : OK" in capsys.readouterr().out


LOG = """# ninja log v5
0\t1500\t1\t{0}/csrc/call.o\taaaa
10\t90000\t1\t{0}/csrc/cpu/reduce.o\tbbbb
20\t2000\t1\tcsrc/check.o\tcccc
0\t500\t2\t{0}/csrc/call.o\taaaa
"""
SETUP = """
import os, pathlib, sys
folder = pathlib.Path(sys.argv[sys.argv.index("--build-temp") + 1])
folder.mkdir()
print("CUDA", os.environ["FASTREDUCE_CUDA"], os.environ.get("TORCH_CUDA_ARCH_LIST"))
(folder / ".ninja_log").write_text("# ninja log v5\\n0\\t70\\t1\\tone.o\\taa\\n")
sys.exit(int(os.environ["FASTREDUCE_CUDA"]))
"""


class TestBuild:
    def test_units_of_a_log_the_slowest_first(self, tmp_path):
        folder = tmp_path / "temp"
        folder.mkdir()
        (folder / ".ninja_log").write_text(LOG.format(folder))
        rows = units(tmp_path)
        # What was compiled twice counts as it was the last time.
        assert [(x["unit"], x["time_s"]) for x in rows] == [
            ("csrc/cpu/reduce", 89.99),
            ("csrc/check", 1.98),
            ("csrc/call", 0.5),
        ]
        assert table(rows, 95.0).endswith("# 3 units, 92 s together; the whole took 95 s")

    @pytest.fixture
    def project(self, tmp_path) -> Path:
        (tmp_path / "setup.py").write_text(SETUP)
        (tmp_path / "out").mkdir()
        return tmp_path

    def test_a_build(self, project):
        assert build(project, None, project / "out") > 0
        assert [x["unit"] for x in units(project / "out")] == ["one"]

    def test_one_that_fails_is_for_all_architectures_and_says_why(self, project, monkeypatch):
        monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", "9.0")
        with pytest.raises(SystemExit, match="CUDA 1 None\nthe build failed: exit status 1"):
            build(project, "", project / "out")

    def test_one_for_an_architecture(self, project):
        with pytest.raises(SystemExit, match=r"CUDA 1 9\.0"):
            build(project, "9.0", project / "out")
