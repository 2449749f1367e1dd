"""Build, test and measure the CUDA engines on this machine's GPU, in one command.

    python benchmarks/gpu_report.py --out DIR                # at most seven minutes
    python benchmarks/gpu_report.py --steps build kernels    # some of it
    python benchmarks/gpu_report.py --rehearsal --out DIR    # tiny, on the CPU: tries the script

It needs torch with CUDA, nvcc, pytest and a GPU, but no network: nothing is downloaded. The steps,
the most telling first:

    build      for this GPU's architecture, on all cores
    smoke      the smallest file of tests, with all engines that one GPU can run, and every
               program, collective, type and operation
    memcheck   the same under compute-sanitizer, without kernels that wait for each other. Not
               racecheck: it looks only at shared memory, which the kernels do not use
    tests      all tests that need a GPU, side by side
    kernels    allreduce of 1 KB to 1 GB against the loop, and against what the memory can do
    peers      the same against what a user could write: torch, CuPy, Triton
    lists      gradients of LeNet, ResNet-18, ResNet-50 and GPT-2 in one call
    train      LeNet, whole epochs, each step one CUDA graph; train_eager: without the graph
    events     the engine for several GPUs, each rank on a stream of its own. One GPU: this says
               nothing of NVLink
    nccl       two processes on this GPU, where NCCL allows it
    ncu        one kernel at 64 MB: how busy memory is, and what the warps wait for

Steps whose tool is missing are left out, and the report says so. All steps together have --budget-s
seconds, and one alone at most 40 % of it. A step that takes longer is interrupted, and has 20 s to
save what it has. A step that fails does not stop the next. The exit status is 1 if any failed.

DIR has REPORT.md (one page, with what was predicted beside what was measured), report.json (all of
it), log.txt (what each step printed) and pictures. They are written after every step, even if
SIGTERM or Ctrl-C ends the run. With --steps, earlier results of other steps are kept.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import signal
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from gpu_page import page
from gpu_steps import steps
from step import INTERRUPTED, ROOT, Step, outcome, run

BUDGET_S, SHARE_OF_A_STEP = 420.0, 0.4
LEAST_SHARE = 0.02  # in less of the budget no step tells anything
PICTURES = ("kernels", "peers", "train")


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


def machine() -> dict[str, Any]:
    """Asked in a new process, which sees the new build and leaves the GPU to the steps."""
    code = "import json, measure; print(json.dumps(measure.machine()))"
    step = Step("machine", [sys.executable, "-c", code], {"PYTHONPATH": str(ROOT / "benchmarks")})
    status, output = outcome(step, 60.0)
    return json.loads(output.splitlines()[-1]) if status == "passed" else {"unknown": output}


class Report:
    """The files in a folder, which are whole after every step."""

    def __init__(self, out: Path, fresh: list[str]) -> None:
        """What was found earlier is kept, except for the ``fresh`` steps."""
        self.out = out
        out.mkdir(parents=True, exist_ok=True)
        earlier = out / "report.json"
        found = json.loads(earlier.read_text()) if earlier.exists() else {}
        self.machine: dict[str, Any] = {}
        self.steps, self.results = (
            {name: x for name, x in found.get(part, {}).items() if name not in fresh}
            for part in ("steps", "results")
        )
        if not self.steps:
            (out / "log.txt").unlink(missing_ok=True)

    def add(self, step: Step, record: dict[str, Any], output: str) -> None:
        self.steps[step.name] = record
        if step.quotes:
            self.results[step.name] = re.findall(step.quotes, output, re.MULTILINE)
        if step.result and step.result.exists():
            self.results[step.name] = read(step.result)
        if step.picture and step.name in PICTURES and step.picture.exists():
            shutil.copy(step.picture, self.out / f"{step.name}.png")
        headline = f"== {step.name}: {record['status']}, {record['seconds']} s\n"
        with (self.out / "log.txt").open("a") as log:
            log.write(self.without_paths(f"{headline}{record['command']}\n{output}\n"))

    def write(self) -> None:
        report = {"machine": self.machine, "steps": self.steps, "results": self.results}
        text = self.without_paths(json.dumps(report, indent=1) + "\n")
        (self.out / "report.json").write_text(text)
        (self.out / "REPORT.md").write_text(page(json.loads(text)))

    def without_paths(self, text: str) -> str:
        """The report may be published, so it must not show this machine's folders."""
        folders = {"OUT": self.out, ".": ROOT, "PREFIX": sys.prefix, "TMP": tempfile.gettempdir()}
        named = {str(path): name for name, path in (folders | {"~": Path.home()}).items()}
        for path in sorted(named, key=len, reverse=True):  # a folder before the one that holds it
            text = text.replace(path, named[path])
        return text


def read(path: Path) -> Any:
    """A JSON file, or one of JSON lines, whose last may be cut off."""
    text = path.read_text()
    if path.suffix == ".jsonl":
        return [json.loads(line) for line in text.split("\n")[:-1]]
    return json.loads(text)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "gpu")
    names = [step.name for step in steps(Path())]
    parser.add_argument("--steps", nargs="+", choices=names, default=names, metavar="STEP")
    parser.add_argument("--rehearsal", action="store_true", help="tiny, on the CPU")
    budget = f"seconds for all steps together ({BUDGET_S:.0f})"
    parser.add_argument("--budget-s", type=float, default=BUDGET_S, help=budget)
    return parser.parse_args()


def main() -> None:
    begin = time.monotonic()
    for number in (signal.SIGINT, signal.SIGTERM):  # a shell's background jobs ignore SIGINT
        signal.signal(number, signal.default_int_handler)
    args = arguments()
    reason = None if args.rehearsal else missing()
    if reason:
        raise SystemExit(f"no GPU report: {reason}")
    report = Report(args.out.resolve(), args.steps)
    with tempfile.TemporaryDirectory() as work:
        for step in steps(Path(work), args.rehearsal):
            if step.name not in args.steps:
                continue
            left_s = begin + args.budget_s - time.monotonic()
            is_enough = left_s > LEAST_SHARE * args.budget_s
            limit_s = min(left_s, SHARE_OF_A_STEP * args.budget_s) if is_enough else 0
            record, output = run(step, limit_s)
            report.add(step, record, output)
            report.write()
            if record["status"] == INTERRUPTED:
                break
            if "torch" not in report.machine:  # until the package is built
                report.machine = machine()
    report.write()
    print(f"== wrote {report.out}")
    done = [record for name, record in report.steps.items() if name in args.steps]
    if any(record["status"].startswith("failed") for record in done):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
