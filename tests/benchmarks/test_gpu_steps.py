"""The steps of benchmarks/gpu_report.py: what becomes of one, and which there are."""

import subprocess
import sys
from pathlib import Path

import gpu_steps
import pytest
import torch
from gpu_steps import ALLREDUCE, OF_PYTEST, steps
from step import ROOT, Step, judge, run
from sweeps import one_in

HANGS = "import time\ntry: time.sleep(200)\nexcept KeyboardInterrupt: print('saved')"
# By what a step does: its program, its limit in seconds, its status and what it printed.
ENDS = {
    "passes": ("print(1)", 60.0, "passed", "1\n"),
    "fails": ("print(1); raise SystemExit(3)", 60.0, "failed: exit status 3", "1\n"),
    "hangs, and saves what it has": (HANGS, 2.0, "failed: not done after 2 s", "saved\n"),
    "finds no time left": ("print(1)", -3.0, "failed: no time left for it", ""),
}


def ended(code, limit_s=60.0, **options):
    """Its status and what it printed."""
    record, output = run(Step("step", [sys.executable, "-c", code], **options), limit_s)
    assert record["tail"] == output.splitlines()
    return record["status"], output


class TestStep:
    @pytest.mark.parametrize(("code", "limit_s", "status", "printed"), ENDS.values(), ids=ENDS)
    def test_that(self, code, limit_s, status, printed):
        assert ended(code, limit_s) == (status, printed)

    def test_in_an_environment(self):
        code = "import os; print(os.environ['X'])"
        assert ended(code, environment={"X": "hello"}) == ("passed", "hello\n")

    def test_that_cannot_run(self):
        found = ended("print(1)", needs="nvcc is missing")
        assert found == ("left out: nvcc is missing", "")

    def test_whose_program_is_not_there(self):
        record, _ = run(Step("step", ["/no/such/program"]), 60.0)
        assert record["status"].startswith("failed: [Errno 2]")

    def test_whose_tests_were_all_skipped(self):
        step = Step("tests", [], quotes=OF_PYTEST)
        assert judge(step, 0, "1403 skipped in 3 s").startswith("failed: it printed no line like")
        assert judge(step, 0, "12 passed, 1403 skipped in 3 s") == "passed"

    def test_that_is_denied(self):
        [step] = [x for x in steps(Path()) if x.name == "ncu"]
        said = "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission"
        assert judge(step, 1, f"x\n{said}\n") == f"left out: {said}"
        assert judge(step, 0, "    DRAM Throughput    %    88.1") == "passed"
        assert judge(step, 0, "No kernels were profiled").startswith("failed")


class TestSteps:
    @pytest.mark.parametrize("name", ALLREDUCE)
    def test_the_benchmark_understands_its_flags(self, tmp_path, monkeypatch, name):
        from allreduce import arguments

        [step] = [x for x in steps(tmp_path) if x.name == name]
        monkeypatch.setattr(sys, "argv", step.command[1:])
        assert (arguments().n, arguments().out) == (5, tmp_path / name)

    @pytest.mark.parametrize(
        ("name", "has_flags"), one_in(2, [("smoke", True), ("memcheck", False)], "benchmarks")
    )
    def test_kernels_that_wait_for_each_other_are_kept_from_the_sanitizer(self, name, has_flags):
        [step] = [x for x in steps(Path()) if x.name == name]
        at = step.command.index("pytest") + 1
        command = [sys.executable, "-m", "pytest", "--collect-only", *step.command[at:]]
        done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=100)
        assert ("test_flags" in done.stdout) == has_flags
        assert "test_allreduce" in done.stdout

    def test_without_tools(self, monkeypatch, tmp_path):
        monkeypatch.setattr(gpu_steps, "cuda_tool", lambda name: None)
        monkeypatch.setattr(gpu_steps, "find_spec", lambda name: None)
        needs = {step.name: step.needs for step in steps(tmp_path)}
        lacking = [name for name, reason in needs.items() if reason == "pytest is not installed"]
        assert lacking == ["smoke", "memcheck", "tests"]
        assert needs["ncu"] == "ncu is not installed"
        assert needs["nccl"] == "torch is not installed"
        assert needs["build"] == "nvcc is not installed" and needs["kernels"] is None

    @pytest.mark.parametrize(
        ("tool", "left_out"),
        [
            ("nvcc", ["build"]),
            ("pytest", ["smoke", "memcheck", "tests"]),
            ("compute-sanitizer", ["memcheck"]),
            ("ncu", ["ncu"]),
            ("xdist", []),
        ],
    )
    def test_without_one_tool(self, monkeypatch, tmp_path, tool, left_out):
        monkeypatch.setattr(gpu_steps, "cuda_tool", lambda name: None if name == tool else "/x")
        monkeypatch.setattr(gpu_steps, "find_spec", lambda name: name != tool)
        monkeypatch.setattr(gpu_steps, "nccl_lacks", lambda: None)
        needs = {x.name: x.needs for x in steps(tmp_path) if x.needs}
        assert needs == dict.fromkeys(left_out, f"{tool} is not installed")
        [tests] = [x for x in steps(tmp_path) if x.name == "tests"]
        assert ("-n" in tests.command) == (tool != "xdist")  # else one test after the other

    @pytest.mark.parametrize(
        ("version", "needs"), [((2, 28, 9), "it takes NCCL 2.30, found 2.28.9"), ((2, 30, 4), None)]
    )
    def test_with_a_version_of_nccl(self, monkeypatch, version, needs):
        monkeypatch.setattr(torch.version, "cuda", "13.0")
        monkeypatch.setattr(torch.cuda.nccl, "version", lambda: version)
        assert gpu_steps.nccl_lacks() == needs

    def test_with_all_tools(self, monkeypatch, tmp_path):
        monkeypatch.setattr(gpu_steps, "cuda_tool", lambda name: f"/cuda/bin/{name}")
        monkeypatch.setattr(gpu_steps, "find_spec", lambda name: True)
        monkeypatch.setattr(gpu_steps, "nccl_lacks", lambda: None)
        assert {x.needs for x in steps(tmp_path)} == {None}
        commands = {x.name: x.command for x in steps(tmp_path)}
        assert commands["memcheck"][0] == "/cuda/bin/compute-sanitizer"
        assert commands["ncu"][0] == "/cuda/bin/ncu" and "-n" in commands["tests"]
