"""The benchmarks' own parts: what they call wrong, what they take time of, what they report."""

import json
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import torch

from fastreduce import allreduce

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"
CPU = [torch.device("cpu")]


@pytest.fixture(autouse=True)
def importable(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))


def python(*arguments, **options):
    command = [sys.executable, *map(str, arguments)]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=240, check=False, **options
    )


class TestChecks:
    def buffers(self, dtype, k=4, count=300, cache_bytes=0):
        from rotation import Buffers

        return Buffers([(count,), (7, 3)], dtype, k, CPU, cache_bytes)

    @pytest.mark.parametrize("op", ["sum", "avg", "prod", "min", "max"])
    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
    def test_right_results_of_every_op(self, dtype, op):
        buffers = self.buffers(dtype, cache_bytes=10_000)
        assert len(buffers.sets) > 2

        def call():
            for ranks in buffers.sets:
                allreduce(ranks, op)

        assert buffers.count_wrong(op, call) == 0

    def test_control_what_does_nothing_is_wrong_everywhere(self):
        assert self.buffers(torch.float32).count_wrong("sum", lambda: None) == 4 * (300 + 21)

    def test_control_one_element(self):
        buffers = self.buffers(torch.float32)

        def call():
            allreduce(buffers.sets[0])
            buffers.sets[0][2][1][6, 2] += 1

        assert buffers.count_wrong("sum", call) == 1

    def test_every_competitor_is_right(self):
        from competitors import theirs

        contenders = theirs(torch.bfloat16, "sum", 4, on_gpu=False)
        assert [x.algorithm for x in contenders] == ["loop", "stack", "foreach"]
        for contender in contenders:
            buffers = self.buffers(torch.bfloat16)
            assert buffers.count_wrong("sum", contender.prepare(buffers.sets[0])) == 0

    def test_values_stay_finite(self):
        from rotation import CALLS_A_SET

        buffers = self.buffers(torch.float16, k=8)
        buffers.refill()
        for _ in range(CALLS_A_SET):
            allreduce(buffers.sets[0])
        assert buffers.pools[0].isfinite().all()
        assert buffers.pools[0].any()

    def test_sets_take_turns(self):
        from competitors import ours
        from rotation import Rotation

        buffers = self.buffers(torch.float32, cache_bytes=10_000)
        called = []
        calls = [partial(called.append, i) for i in range(len(buffers.sets))]
        rotation = Rotation(buffers, ours("tiles", "auto", "sum"), calls)
        rotation.run(len(calls) + 2)
        assert called == [*range(len(calls)), 0, 1]


def test_kernels_on_a_machine_without_a_gpu(tmp_path):
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    flags = ["-e", "1K", "-n", "1", "-w", "1", "-k", "2", "--algorithm", "auto", "ring", "--out"]
    done = python(BENCHMARKS / "kernels.py", *flags, tmp_path / "out")
    assert done.returncode == 0, done.stderr
    assert "# engines: on the CPU: no GPU here" in done.stdout
    assert "# Out of bounds values : 0 OK" in done.stdout
    written = json.loads((tmp_path / "out.json").read_text())
    measured = {row["algorithm"] for row in written["rows"]}
    assert measured == {"auto", "ring", "loop", "stack", "foreach"}
    assert (tmp_path / "out.png").stat().st_size > 0


def test_kernels_of_an_engine_that_cannot_run_here():
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    done = python(BENCHMARKS / "kernels.py", "--engine", "events")
    assert done.returncode == 1
    assert "none of the engines events can run here" in done.stderr


class TestGpuReport:
    def test_without_a_gpu_says_what_is_missing_in_one_line(self, tmp_path):
        if torch.cuda.is_available():
            pytest.skip("there is a GPU")
        done = python(BENCHMARKS / "gpu_report.py", "--out", tmp_path / "gpu")
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr.startswith("no GPU report: torch ")
        assert done.stderr.count("\n") == 1
        assert not (tmp_path / "gpu").exists()

    def run(self, code, limit_s=60.0, **options):
        from gpu_report import Step, run

        return run(Step("step", [sys.executable, "-c", code], limit_s, **options), limit_s)

    def test_a_step(self):
        done = self.run("import os; print(os.environ['X'])", environment={"X": "hello"})
        assert (done["status"], done["tail"]) == ("passed", ["hello"])

    def test_one_that_fails(self):
        assert self.run("raise SystemExit(3)")["status"] == "failed: exit status 3"

    def test_one_that_cannot_run(self):
        done = self.run("print(1)", needs="nvcc is missing")
        assert (done["status"], done["tail"]) == ("left out: nvcc is missing", [])

    def test_one_that_hangs_may_save_what_it_has(self):
        code = "import time\ntry: time.sleep(200)\nexcept KeyboardInterrupt: print('saved')"
        done = self.run(code, limit_s=2.0)
        assert (done["status"], done["tail"]) == ("failed: not done after 2 s", ["saved"])

    def test_tests_that_were_all_skipped_are_no_pass(self):
        from gpu_report import PYTEST, Step, judge

        step = Step("tests", ["python", *PYTEST], 1.0)
        assert judge(step, 0, "1403 skipped in 3 s") == "failed: no test ran"
        assert judge(step, 0, "12 passed, 1403 skipped in 3 s") == "passed"
