"""benchmarks/gpu_report.py: steps with one budget, and a report of whatever became of them."""

import json
import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import gpu_report
import pytest
import torch
from gpu_report import ALLREDUCE, PYTEST, machine, steps, versions
from step import Step, judge, run

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def test_without_a_gpu_says_what_is_missing_in_one_line(monkeypatch, capsys, tmp_path):
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    monkeypatch.setattr(signal, "signal", lambda *handler: None)
    monkeypatch.setattr(sys, "argv", ["gpu_report.py", "--out", str(tmp_path / "gpu")])
    with pytest.raises(SystemExit, match=r"^no GPU report: torch [^\n]*$"):
        gpu_report.main()
    assert capsys.readouterr().out == ""
    assert not (tmp_path / "gpu").exists()


def run_step(code, limit_s=60.0, **options):
    return run(Step("step", [sys.executable, "-c", code], **options), limit_s)


def test_a_step():
    done = run_step("import os; print(os.environ['X'])", environment={"X": "hello"})
    assert (done["status"], done["tail"]) == ("passed", ["hello"])


def test_one_that_fails():
    assert run_step("raise SystemExit(3)")["status"] == "failed: exit status 3"


def test_one_that_cannot_run():
    done = run_step("print(1)", needs="nvcc is missing")
    assert (done["status"], done["tail"]) == ("left out: nvcc is missing", [])


def test_one_that_hangs_may_save_what_it_has():
    code = "import time\ntry: time.sleep(200)\nexcept KeyboardInterrupt: print('saved')"
    done = run_step(code, limit_s=2.0)
    assert (done["status"], done["tail"]) == ("failed: not done after 2 s", ["saved"])


def test_tests_that_were_all_skipped_are_no_pass():
    step = Step("tests", ["python", *PYTEST])
    assert judge(step, 0, "1403 skipped in 3 s") == "failed: no test ran"
    assert judge(step, 0, "12 passed, 1403 skipped in 3 s") == "passed"


def test_one_that_finds_no_time_left():
    assert run_step("print(1)", limit_s=-3.0)["status"] == "failed: no time left for it"


def test_versions_of_what_builds():
    assert f"torch {torch.__version__}" in versions() and "nvcc " in versions()


def test_the_benchmark_understands_its_flags(tmp_path, monkeypatch):
    from allreduce import arguments

    [step] = [x for x in steps(tmp_path, ALLREDUCE.split()) if x.name == "allreduce"]
    monkeypatch.setattr(sys, "argv", step.command[1:])
    args = arguments()
    assert (args.e, args.n, args.out) == (256 << 20, 7, tmp_path / "allreduce")


def test_the_machine():
    assert machine()["torch"] == torch.__version__


def report_of(tmp_path, codes, *flags):
    """A report of these steps, on a machine that passes for one with a GPU."""
    script = f"""
        import sys
        sys.path.insert(0, {str(BENCHMARKS)!r})
        import gpu_report
        from step import Step
        gpu_report.missing = lambda: None
        gpu_report.machine = lambda: {{"gpu": "none"}}
        gpu_report.steps = lambda out, options: [
            Step(name, [sys.executable, "-c", code]) for name, code in {codes!r}.items()
        ]
        gpu_report.main()
    """
    command = [sys.executable, "-c", textwrap.dedent(script), "--out", str(tmp_path), *flags]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_the_steps_share_one_budget(tmp_path):
    codes = {"build": "print('built')", "tests": "import time; time.sleep(100)", "allreduce": ""}
    process = report_of(tmp_path, codes, "--budget-s", "3")
    said, errors = process.communicate(timeout=100)
    assert process.returncode == 1 and "built" in said, errors
    steps = json.loads((tmp_path / "report.json").read_text())["steps"]
    statuses = [step["status"] for step in steps]
    assert statuses[0] == "passed"
    assert re.fullmatch(r"failed: not done after \d s", statuses[1])
    assert statuses[2] == "failed: no time left for it"


def test_sigterm_ends_the_step_and_leaves_a_report(tmp_path):
    pid, saved = tmp_path / "pid", tmp_path / "allreduce.json"
    codes = {
        "build": "print('built')",
        "allreduce": f"""if True:
            import os, pathlib, time
            pathlib.Path({str(pid)!r}).write_text(str(os.getpid()))
            try: time.sleep(200)
            except KeyboardInterrupt: pathlib.Path({str(saved)!r}).write_text('{{"rows": []}}')
        """,
        "memcheck": "print(1)",
    }
    process = report_of(tmp_path, codes)
    for _ in range(600):
        if pid.exists() and pid.read_text():
            break
        time.sleep(0.1)
    early = json.loads((tmp_path / "report.json").read_text())
    assert [step["status"] for step in early["steps"]] == ["passed"]
    process.terminate()
    process.communicate(timeout=60)
    assert process.returncode == 1
    report = json.loads((tmp_path / "report.json").read_text())
    assert [step["status"] for step in report["steps"]] == ["passed", "failed: interrupted"]
    assert report["allreduce"] == {"rows": []} and report["machine"] == {"gpu": "none"}
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid.read_text()), 0)
