"""benchmarks/gpu_report.py: steps with one budget, and a report of whatever became of them."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import gpu_report
import pytest
import torch
from gpu_report import Report, machine, read
from gpu_steps import steps
from step import NO_TIME

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
NAMES = [step.name for step in steps(Path())]


def test_without_a_gpu_says_what_is_missing_in_one_line(monkeypatch, capsys, tmp_path):
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    monkeypatch.setattr(signal, "signal", lambda *handler: None)
    monkeypatch.setattr(sys, "argv", ["gpu_report.py", "--out", str(tmp_path / "gpu")])
    with pytest.raises(SystemExit, match=r"^no GPU report: torch [^\n]*$"):
        gpu_report.main()
    assert capsys.readouterr().out == ""
    assert not (tmp_path / "gpu").exists()


@pytest.mark.parametrize(("module", "status"), [("gpu_report", 0), ("measure", 1)])
def test_it_begins_before_fastreduce_and_torch_are_there(module, status):
    code = f"import sys; sys.modules |= dict(fastreduce=None, torch=None); import {module}"
    done = subprocess.run([sys.executable, "-c", code], cwd=BENCHMARKS, check=False)
    assert done.returncode == status  # measure needs both


def test_the_machine():
    assert machine()["torch"] == torch.__version__


def test_json_lines_whose_last_is_cut_off(tmp_path):
    (tmp_path / "x.jsonl").write_text('{"a": 1}\n{"a": ')
    assert read(tmp_path / "x.jsonl") == [{"a": 1}]


@pytest.mark.sweep("a report, rehearsed")
def test_a_rehearsal(tmp_path):
    command = [sys.executable, BENCHMARKS / "gpu_report.py", "--rehearsal", "--out", tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, timeout=400, check=False)
    report = json.loads((tmp_path / "report.json").read_text())
    statuses = {name: step["status"] for name, step in report["steps"].items()}
    assert list(statuses) == NAMES, done.stdout
    assert statuses.pop("train") == "failed: exit status 2"  # a graph needs a GPU
    assert done.returncode == 1
    assert {x.split(":")[0] for x in statuses.values()} <= {"passed", "left out"}, done.stdout
    assert {"smoke", "kernels", "peers", "lists", "events", "nccl"} <= report["results"].keys()
    page = (tmp_path / "REPORT.md").read_text()
    for text in (
        "| kernels | passed |",
        "float32 | 8 KiB",
        "LeNet, 8 tensors",
        "gloo",
        "images, batch",
    ):
        assert text in page
    assert "wanted GPUs for a CUDA graph" in page
    files = {path.name for path in tmp_path.iterdir()}
    assert files == {"REPORT.md", "report.json", "log.txt", "kernels.png", "peers.png"}
    for name in ("REPORT.md", "report.json", "log.txt"):
        text = (tmp_path / name).read_text()
        assert str(BENCHMARKS.parent) not in text and str(tmp_path) not in text


def report_of(tmp_path, codes, *flags):
    """A report of these steps, on a machine that passes for one with a GPU."""
    saved = tmp_path / "saved.json"
    script = f"""
        import pathlib, sys
        sys.path.insert(0, {str(BENCHMARKS)!r})
        import gpu_report
        from step import Step
        gpu_report.missing = lambda: None
        gpu_report.machine = lambda: {{"gpu": "none", "torch": "2"}}
        gpu_report.steps = lambda work, rehearsal=False: [
            Step(name, [sys.executable, "-c", code], result=pathlib.Path({str(saved)!r}))
            for name, code in {codes!r}.items()
        ]
        gpu_report.main()
    """
    command = [sys.executable, "-c", textwrap.dedent(script), "--out", str(tmp_path), *flags]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def found_in(tmp_path):
    return json.loads((tmp_path / "report.json").read_text())


def statuses(tmp_path):
    return [step["status"] for step in found_in(tmp_path)["steps"].values()]


def test_steps_that_fail_do_not_stop_the_next(tmp_path):
    codes = {name: f"print('words of {name}'); raise SystemExit(2)" for name in NAMES}
    process = report_of(tmp_path, codes)
    _, errors = process.communicate(timeout=100)
    assert process.returncode == 1 and not errors
    assert statuses(tmp_path) == ["failed: exit status 2"] * len(NAMES)
    page, log = ((tmp_path / x).read_text() for x in ("REPORT.md", "log.txt"))
    for name in NAMES:
        assert f"| {name} | failed: exit status 2 |" in page
        assert f"words of {name}" in page and f"words of {name}" in log


def test_the_steps_share_one_budget_and_none_takes_all_of_it(tmp_path):
    codes = {"build": "print('built')", "tests": "import time; time.sleep(100)", "kernels": ""}
    process = report_of(tmp_path, codes, "--budget-s", "5")
    said, errors = process.communicate(timeout=100)
    assert process.returncode == 1 and "built" in said, errors
    first, second, _ = statuses(tmp_path)
    assert (first, second) == ("passed", "failed: not done after 2 s")


def test_steps_without_time_are_left_out(tmp_path):
    report_of(tmp_path, {"build": "print(1)"}, "--budget-s", "0").communicate(timeout=100)
    assert statuses(tmp_path) == [NO_TIME]


def test_what_was_found_earlier_is_kept(tmp_path):
    for steps_, code in (([], "raise SystemExit(2)"), (["--steps", "tests"], "print(1)")):
        report_of(tmp_path, {"build": code, "tests": code}, *steps_).communicate(timeout=100)
    found = {name: x["status"] for name, x in found_in(tmp_path)["steps"].items()}
    assert found == {"build": "failed: exit status 2", "tests": "passed"}


def test_sigterm_ends_the_step_and_leaves_a_report(tmp_path):
    pid, saved = tmp_path / "pid", tmp_path / "saved.json"
    codes = {
        "build": "print('built')",
        "kernels": f"""if True:
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
    assert statuses(tmp_path) == ["passed"]
    process.terminate()
    process.communicate(timeout=60)
    assert process.returncode == 1
    assert statuses(tmp_path) == ["passed", "failed: interrupted"]
    assert found_in(tmp_path)["results"]["kernels"] == {"rows": []}
    assert found_in(tmp_path)["machine"]["gpu"] == "none"
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid.read_text()), 0)


def test_no_path_of_this_machine(tmp_path, monkeypatch):
    report = Report(tmp_path / "out", NAMES)
    text = f"{tmp_path / 'out'}/x {BENCHMARKS} {sys.prefix}/lib {Path.home()}/y"
    assert report.without_paths(text) == "OUT/x ./benchmarks PREFIX/lib ~/y"
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))  # holds the folder of results
    text = f"{tmp_path}/a {tmp_path / 'out'}/x"
    assert report.without_paths(text) == "TMP/a OUT/x"
    monkeypatch.setenv("HOME", str(tmp_path / "out" / "home"))  # lies in it
    assert report.without_paths(f"{Path.home()}/y {tmp_path / 'out'}/x") == "~/y OUT/x"
