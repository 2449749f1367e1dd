"""Builds, tests, checks and measures the CUDA engines on this machine's GPU, in one command.

    python benchmarks/gpu_report.py                      # about half an hour; results/gpu
    python benchmarks/gpu_report.py --steps build tests  # some of it
    python benchmarks/gpu_report.py --kernels "-e 64M -n 5 -d float32"

It needs torch with CUDA, nvcc, pytest and a GPU, and no network: nothing is downloaded. Steps that
need what is not there (compute-sanitizer, say) are left out and named. A step that fails or takes
too long does not stop the next; the exit status is 1 if any did. OUT/report.json holds each step's
date, status, seconds and last lines, the machine, and what benchmarks/kernels.py measured; its
picture lies beside it. With --steps, earlier reports of other steps are kept.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
TAIL_LINES = 40
PYTEST = ("-m", "pytest", "-m", "gpu", "-p", "no:cacheprovider", "-o", "addopts=", "-rs", "-q")
# Of torch's cache the sanitizer sees one allocation, in which nothing is out of bounds.
NO_CACHE = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}


@dataclass(frozen=True)
class Step:
    name: str
    command: list[str]
    limit_s: float
    environment: dict[str, str] = field(default_factory=dict)
    needs: str | None = None  # what it lacks here, if anything


def compute_sanitizer() -> str | None:
    roots = (os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda")
    folders = [str(Path(root) / "bin") for root in roots if root]
    return shutil.which("compute-sanitizer", path=os.pathsep.join([os.environ["PATH"], *folders]))


def steps(out: Path, kernels: Iterable[str]) -> list[Step]:
    python = sys.executable
    sanitizer = compute_sanitizer()
    lacks_pytest = None if find_spec("pytest") else "pytest is not installed"
    lacks_sanitizer = None if sanitizer else "compute-sanitizer is not installed"

    def sanitized(tool: str) -> Step:
        """Of the smallest file of tests, which has a little of everything."""
        # Errors that calls return are torch's and the engines' own to look at.
        options = ["--tool", tool, "--error-exitcode", "86", "--report-api-errors", "no"]
        tests = [python, *PYTEST, "-x", "tests/gpu/test_gpu_small.py"]
        command = [sanitizer or "compute-sanitizer", *options, *tests]
        return Step(tool, command, 600, NO_CACHE, lacks_pytest or lacks_sanitizer)

    install = ["-m", "pip", "install", "--no-build-isolation", "--no-deps", "--no-index", "."]
    return [
        Step("build", [python, *install, "--force-reinstall"], 1200, {"FASTREDUCE_CUDA": "1"}),
        Step("tests", [python, *PYTEST, "tests/gpu"], 1200, {}, lacks_pytest),
        sanitized("memcheck"),
        sanitized("racecheck"),
        Step(
            "kernels",
            [python, "benchmarks/kernels.py", "--out", str(out / "kernels"), *kernels],
            1800,
        ),
    ]


def missing() -> str | None:
    """What keeps this machine from having anything to report."""
    if find_spec("torch") is None:
        return "torch is not installed"
    import torch

    if torch.version.cuda is None:
        return f"torch {torch.__version__} is a CPU build"
    if not torch.cuda.is_available():
        return "torch finds no GPU"
    return None


def run(step: Step, limit_s: float) -> dict[str, Any]:
    print(f"== {step.name}: {shlex.join(step.command)}", flush=True)
    about = {
        "name": step.name,
        "date": datetime.date.today().isoformat(),
        "command": shlex.join(step.command),
    }
    if step.needs:
        print(f"   left out: {step.needs}")
        return {**about, "status": f"left out: {step.needs}", "seconds": 0.0, "tail": []}
    begin = time.monotonic()
    process = subprocess.Popen(
        step.command,
        cwd=ROOT,
        env={**os.environ, **step.environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=limit_s)
        status = judge(step, process.returncode, output)
    except subprocess.TimeoutExpired:
        output, status = stop(process), f"failed: not done after {limit_s:.0f} s"
    tail = output.splitlines()[-TAIL_LINES:]
    seconds = time.monotonic() - begin
    print("\n".join(tail[-5:]), f"\n   {status}, {seconds:.0f} s", flush=True)
    return {**about, "status": status, "seconds": round(seconds, 1), "tail": tail}


def stop(process: subprocess.Popen[str]) -> str:
    """First politely: a benchmark that is interrupted saves what it has."""
    for number in (signal.SIGINT, signal.SIGKILL):
        os.killpg(process.pid, number)
        try:
            return process.communicate(timeout=60)[0]
        except subprocess.TimeoutExpired:
            continue
    return process.communicate()[0]


def judge(step: Step, code: int, output: str) -> str:
    if code != 0:
        return f"failed: exit status {code}"
    if "pytest" in step.command and not re.search(r"\b[1-9]\d* passed", output):
        return "failed: no test ran"
    return "passed"


def without_paths(text: str, out: Path) -> str:
    """The report is to be published: it says nothing of where things lie on this machine."""
    for path, name in ((out, "OUT"), (ROOT, "."), (sys.prefix, "PREFIX"), (Path.home(), "~")):
        text = text.replace(str(path), name)
    return text


def machine() -> dict[str, Any]:
    """In a process of its own: the package was built only now, and the GPU is left to the steps."""
    code = "import json, measure; print(json.dumps(measure.machine()))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT / "benchmarks", capture_output=True, text=True
    )
    return json.loads(done.stdout) if done.returncode == 0 else {"unknown": done.stderr}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "gpu")
    names = ["build", "tests", "memcheck", "racecheck", "kernels"]
    parser.add_argument("--steps", nargs="+", choices=names, default=names)
    parser.add_argument("--kernels", default="", help="options of benchmarks/kernels.py, quoted")
    parser.add_argument("--limit-s", type=float, help="a step's longest time (20 to 30 minutes)")
    return parser.parse_args()


def main() -> None:
    args = arguments()
    reason = missing()
    if reason:
        raise SystemExit(f"no GPU report: {reason}")
    out = args.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    chosen = [x for x in steps(out, shlex.split(args.kernels)) if x.name in args.steps]
    measured, written = out / "kernels.json", out / "report.json"
    if "kernels" in args.steps:
        measured.unlink(missing_ok=True)  # or an earlier run's would be taken for this one's
    earlier = json.loads(written.read_text())["steps"] if written.exists() else []
    done = [run(step, min(step.limit_s, args.limit_s or step.limit_s)) for step in chosen]
    report = {
        "machine": machine(),
        "steps": [x for x in earlier if x["name"] not in args.steps] + done,
        "kernels": json.loads(measured.read_text()) if measured.exists() else None,
    }
    written.write_text(without_paths(json.dumps(report, indent=1) + "\n", out))
    print(f"== wrote {written}")
    if any(step["status"].startswith("failed") for step in done):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
