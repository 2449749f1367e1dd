"""Build, test, check and measure the CUDA engines on this machine's GPU, in one command.

    python benchmarks/gpu_report.py                      # at most ten minutes; results/gpu
    python benchmarks/gpu_report.py --steps build tests  # some of it
    python benchmarks/gpu_report.py --steps allreduce --budget-s 3600 --allreduce "-n 11"

The last line runs benchmarks/allreduce.py with the installed fastreduce. Without --allreduce, that
step has few sizes, takes 5 rounds and leaves out torch.compile's sum, so that all steps fit into
ten minutes.

It needs torch with CUDA, nvcc, pytest and a GPU, but no network: nothing is downloaded. Steps whose
tool is missing (such as compute-sanitizer) are left out and named. All steps together have
--budget-s seconds. A step that takes longer than is left is interrupted, and has 20 s to save what
it has; later steps do not begin. A step that fails does not stop the next. The exit status is 1 if
any step failed or was cut off.

OUT/report.json holds each step's date, status, seconds and last lines, the machine, and what
benchmarks/allreduce.py measured; the picture is beside it. It is written after every step, even if
SIGTERM or Ctrl-C ends the run. With --steps, earlier reports of other steps are kept.

The steps are build, tests, memcheck and allreduce. memcheck runs the smallest file of tests under
compute-sanitizer. Its racecheck is no step: it looks only at shared memory, which the kernels do
not use. The order of accesses to global memory is tested in tests/csrc/virtual_cuda.
"""

from __future__ import annotations

import argparse
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
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from step import INTERRUPTED, ROOT, Step, run

BUDGET_S = 570.0
ALLREDUCE = "-e 1G -f 8 -n 5 -d float32 bfloat16 --against loop stack foreach cupy triton"
# A test that takes longer than a minute prints where it is, because it may hang.
PYTEST = (
    *("-m", "pytest", "-m", "gpu", "-p", "no:cacheprovider", "-o", "addopts="),
    *("-o", "faulthandler_timeout=60", "-rfEs", "--tb=short", "-q"),
)
# With torch's cache the sanitizer sees one allocation, and no access is out of its bounds.
NO_CACHE = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}


def cuda_tool(name: str) -> str | None:
    """The tool's path, from where the build also looks for nvcc; last in the wheels beside
    torch."""
    roots = [os.environ[x] for x in ("CUDA_HOME", "CUDA_PATH") if x in os.environ]
    torch = find_spec("torch")
    site = Path(torch.origin).parent.parent if torch and torch.origin else ROOT
    wheels = [str(x) for x in site.glob("nvidia/cu*/bin")]
    folders = [*(f"{x}/bin" for x in roots), os.environ["PATH"], "/usr/local/cuda/bin", *wheels]
    return shutil.which(name, path=os.pathsep.join(folders))


def versions() -> str:
    """The versions of the build tools, which are often the reason why a build fails."""
    import torch

    found = {"setuptools": "missing", "torch": torch.__version__}
    with suppress(PackageNotFoundError):
        found["setuptools"] = version("setuptools")
    nvcc = cuda_tool("nvcc")
    said = (
        subprocess.run([nvcc, "--version"], capture_output=True, text=True).stdout if nvcc else ""
    )
    release = re.search(r"release [^\n]*", said)
    found["nvcc"] = release[0] if release else "missing"
    return ", ".join(f"{name} {what}" for name, what in found.items())


def steps(out: Path, options: Iterable[str]) -> list[Step]:
    python = sys.executable
    sanitizer = cuda_tool("compute-sanitizer")
    lacks_pytest = None if find_spec("pytest") else "pytest is not installed"
    lacks_sanitizer = None if sanitizer else "compute-sanitizer is not installed"

    def sanitized(tool: str) -> Step:
        """Runs the smallest file of tests, which has a little of everything."""
        # Not the errors that CUDA calls return: torch and the engines check these themselves.
        flags = ["--tool", tool, "--error-exitcode", "86", "--report-api-errors", "no"]
        tests = [python, *PYTEST, "-x", "tests/gpu/test_gpu_small.py"]
        command = [sanitizer or "compute-sanitizer", *flags, *tests]
        return Step(tool, command, NO_CACHE, lacks_pytest or lacks_sanitizer)

    install = ["-m", "pip", "install", "--no-build-isolation", "--no-deps", "--no-index", "."]
    build = [python, *install, "--force-reinstall"]
    measure = [python, "benchmarks/allreduce.py", "--out", str(out / "allreduce"), *options]
    workers = ["-n", "6"] if find_spec("xdist") else []  # they share the GPU, which waits for them
    return [
        Step("build", build, {"FASTREDUCE_CUDA": "1"}, note=versions()),
        Step("tests", [python, *PYTEST, *workers, "tests/gpu"], needs=lacks_pytest),
        sanitized("memcheck"),
        Step("allreduce", measure),
    ]


def missing() -> str | None:
    """What this machine lacks for a report, or None."""
    if find_spec("torch") is None:
        return "torch is not installed"
    import torch

    if torch.version.cuda is None:
        return f"torch {torch.__version__} is a CPU build"
    if not torch.cuda.is_available():
        return "torch finds no GPU"
    return None


def without_paths(text: str, out: Path) -> str:
    """The report may be published, so it must not show this machine's folders."""
    for path, name in ((out, "OUT"), (ROOT, "."), (sys.prefix, "PREFIX"), (Path.home(), "~")):
        text = text.replace(str(path), name)
    return text


def machine() -> dict[str, Any]:
    """Asked in a new process, which sees the new build and leaves the GPU to the steps."""
    code = "import json, measure; print(json.dumps(measure.machine()))"
    try:
        done = subprocess.run(
            [sys.executable, "-c", code],
            cwd=ROOT / "benchmarks",
            capture_output=True,
            text=True,
            timeout=60,
        )
    except subprocess.TimeoutExpired as error:
        return {"unknown": str(error)}
    return json.loads(done.stdout) if done.returncode == 0 else {"unknown": done.stderr}


def write(out: Path, about: dict[str, Any], steps: list[dict[str, Any]]) -> None:
    """Write the report of these steps, with what benchmarks/allreduce.py has saved by now."""
    measured = out / "allreduce.json"
    if measured.exists():
        measured.write_text(without_paths(measured.read_text(), out))
    allreduce = json.loads(measured.read_text()) if measured.exists() else None
    report = {"machine": about, "steps": steps, "allreduce": allreduce}
    (out / "report.json").write_text(without_paths(json.dumps(report, indent=1) + "\n", out))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "gpu")
    names = ["build", "tests", "memcheck", "allreduce"]
    parser.add_argument("--steps", nargs="+", choices=names, default=names)
    options = f"options of benchmarks/allreduce.py, quoted ({ALLREDUCE})"
    parser.add_argument("--allreduce", default=ALLREDUCE, help=options)
    budget = f"seconds for all steps together ({BUDGET_S:.0f})"
    parser.add_argument("--budget-s", type=float, default=BUDGET_S, help=budget)
    return parser.parse_args()


def main() -> None:
    begin = time.monotonic()
    for number in (signal.SIGINT, signal.SIGTERM):  # a shell's background jobs ignore SIGINT
        signal.signal(number, signal.default_int_handler)
    args = arguments()
    reason = missing()
    if reason:
        raise SystemExit(f"no GPU report: {reason}")
    out = args.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    if "allreduce" in args.steps:  # otherwise an earlier run's would count as this one's
        (out / "allreduce.json").unlink(missing_ok=True)
    written = out / "report.json"
    earlier = json.loads(written.read_text())["steps"] if written.exists() else []
    kept = [x for x in earlier if x["name"] not in args.steps]
    about: dict[str, Any] = {"unknown": "no step has been run"}
    done: list[dict[str, Any]] = []
    for step in steps(out, shlex.split(args.allreduce)):
        if step.name not in args.steps:
            continue
        done.append(run(step, begin + args.budget_s - time.monotonic()))
        write(out, about, kept + done)
        if done[-1]["status"] == INTERRUPTED:
            break
        if "unknown" in about:  # until the package is built
            about = machine()
            write(out, about, kept + done)
    print(f"== wrote {written}")
    if any(step["status"].startswith("failed") for step in done):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
