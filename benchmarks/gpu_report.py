"""Build, test and measure the CUDA engines on this machine's GPU, in one command.

    python benchmarks/gpu_report.py --out DIR                # at most seven minutes
    python benchmarks/gpu_report.py --steps build kernels    # some of it
    python benchmarks/gpu_report.py --rehearsal --out DIR    # tiny, on the CPU: tries the script

It needs torch with CUDA, nvcc, pytest and a GPU, but no network: nothing is downloaded. The steps,
the most telling first:

    build      for this GPU's architecture, on all cores
    smoke      the smallest file of tests, with every engine, program and collective
    memcheck   the same under compute-sanitizer. Not racecheck: it looks only at shared memory,
               which the kernels do not use
    tests      all tests that need a GPU, side by side
    kernels    allreduce of 1 KB to 256 MB against the loop, and against what the memory can do
    peers      the same against what a user could write: torch, CuPy, Triton
    lists      gradients of LeNet, ResNet-18, ResNet-50 and GPT-2 in one call
    train      LeNet, whole epochs, each step one CUDA graph; train_eager: without the graph
    events     the engine for several GPUs, each rank on a stream of its own. One GPU: this says
               nothing of NVLink
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
import os
import re
import shlex
import shutil
import signal
import sys
import tempfile
import time
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from gpu_page import page
from step import INTERRUPTED, ROOT, Step, outcome, run

BUDGET_S, SHARE_OF_A_STEP = 420.0, 0.4
FIRST_NCCL_FOR_ONE_GPU = (2, 30)
BUILD = {"FASTREDUCE_CUDA": "1"}
INSTALL = "-m pip install --no-build-isolation --no-deps --no-index --force-reinstall ."
# A test that takes longer than a minute prints where it is, because it may hang.
PYTEST = (
    "-m pytest -m gpu -p no:cacheprovider -o addopts= -o faulthandler_timeout=60 -rfE --tb=short -q"
)
SMALL = "tests/gpu/test_gpu_small.py"
OF_PYTEST = r"^(?:FAILED|ERROR) .*|^.*\b[1-9]\d* passed.*"
# Not the errors that CUDA calls return: torch and the engines check these themselves. With torch's
# cache the sanitizer sees one allocation, and no access is out of its bounds.
SANITIZER = "--tool memcheck --error-exitcode 86 --report-api-errors no"
NO_CACHE = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
BENCHMARK = "benchmarks/allreduce.py"
FEW = "-b 64K -e 256M -f 64 -n 5 -d float32 --lists"
ALLREDUCE = {
    "kernels": "-e 1G -f 8 -n 5 -d float32 bfloat16 --engine tiles --algorithm auto leader sharded "
    "--against loop",
    "peers": f"{FEW} -k 2 8 --engine tiles --algorithm auto",
    "lists": "-e 1 -n 5 -d float32 --lists LeNet ResNet-18 ResNet-50 GPT-2 --engine tiles "
    "--algorithm auto --against loop foreach",
    "events": f"{FEW} -k 4 8 --engine tiles events --algorithm leader sharded ring --against",
}
TRAIN = "-m fastreduce train --devices cuda:0 --replicas 2 --epochs 4"
NCU = (
    "--clock-control none --kernel-name-base demangled -k regex:fastreduce -s 1 -c 1 "
    "--section SpeedOfLight --section WarpStateStats --section LaunchStats"
)
PROFILED = (
    "-b 64M -e 64M -k 2 -n 1 -w 1 -d float32 --engine tiles --algorithm auto --lists --against"
)
OF_NCU = r"^ +(?:Duration|DRAM Throughput|Memory Throughput|Registers Per) .*|^.*being stalled.*"
DENIED = r"^.*ERR_NVGPUCTRPERM.*"
PICTURES = ("kernels", "peers", "train")
METRICS, PICTURE = "metrics.jsonl", "learning_curve.png"  # of fastreduce train
REHEARSAL = {  # later flags win over earlier ones
    "pytest": "-m 'not gpu' -k test_allreduce",
    "allreduce": "-b 1K -e 8K -f 8 -n 1 -w 1 -k 2 -t 1 --lists LeNet --against loop",
    "train": "--devices cpu --epochs 1 --steps 2",
}


def cuda_tool(name: str) -> str | None:
    """The tool's path, from where the build also looks for nvcc; last in the wheels beside
    torch."""
    roots = [os.environ[x] for x in ("CUDA_HOME", "CUDA_PATH") if x in os.environ]
    torch = find_spec("torch")
    site = Path(torch.origin).parent.parent if torch and torch.origin else ROOT
    wheels = [str(x) for x in site.glob("nvidia/cu*/bin")]
    folders = [*(f"{x}/bin" for x in roots), os.environ["PATH"], "/usr/local/cuda/bin", *wheels]
    return shutil.which(name, path=os.pathsep.join(folders))


def steps(work: Path, rehearsal: bool = False) -> list[Step]:
    """All steps; what they measure they write into ``work``."""
    also = REHEARSAL if rehearsal else dict.fromkeys(REHEARSAL, "")
    tools = {name: cuda_tool(name) or name for name in ("compute-sanitizer", "ncu")}
    lacks = {name: f"{name} is not installed" for name, path in tools.items() if name == path}
    if not find_spec("pytest"):
        lacks["pytest"] = "pytest is not installed"
    workers = "-n 6" if find_spec("xdist") else ""  # they share the GPU, which waits for them

    def run(name: str, flags: str, *files: str | Path, **about: Any) -> Step:
        return Step(name, [sys.executable, *shlex.split(flags), *map(str, files)], **about)

    def tests(name: str, flags: str, **about: Any) -> Step:
        about = {"needs": lacks.get("pytest"), "quotes": OF_PYTEST, **about}
        return run(name, f"{PYTEST} {flags} {also['pytest']}", **about)

    def measure(name: str) -> Step:
        flags = f"{BENCHMARK} {ALLREDUCE[name]} {also['allreduce']}"
        files = {"result": work / f"{name}.json", "picture": work / f"{name}.png"}
        return run(name, flags, "--out", work / name, **files)

    def train(name: str, flags: str) -> Step:
        files = {"result": work / name / METRICS, "picture": work / name / PICTURE}
        return run(name, f"{TRAIN} {flags} {also['train']}", "--out", work / name, **files)

    checked = tests("memcheck", SMALL, environment=NO_CACHE)
    profiled = run("ncu", f"{BENCHMARK} {PROFILED} {also['allreduce']}")
    return [
        run("build", INSTALL, environment=BUILD, needs="a rehearsal" if rehearsal else None),
        tests("smoke", SMALL),
        under([tools["compute-sanitizer"], *SANITIZER.split()], checked, lacks),
        tests("tests", f"{workers} {SMALL if rehearsal else 'tests/gpu'}"),
        *(measure(name) for name in ("kernels", "peers", "lists")),
        train("train", "--graph"),
        train("train_eager", ""),
        measure("events"),
        under([tools["ncu"], *NCU.split()], profiled, lacks, quotes=OF_NCU, denied=DENIED),
    ]


def under(tool: list[str], step: Step, lacks: dict[str, str], **about: Any) -> Step:
    """The step, started by a tool, which may be missing."""
    needs = step.needs or lacks.get(tool[0])
    return replace(step, command=[*tool, *step.command], needs=needs, **about)


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
        self.machine = found.get("machine", {})
        self.steps, self.results = (
            {name: x for name, x in found.get(part, {}).items() if name not in fresh}
            for part in ("steps", "results")
        )

    def add(self, step: Step, record: dict[str, Any], output: str) -> None:
        self.steps[step.name] = record
        if step.quotes:
            self.results[step.name] = re.findall(step.quotes, output, re.MULTILINE)
        if step.result and step.result.exists():
            lines = step.result.suffix == ".jsonl"
            text = step.result.read_text()
            self.results[step.name] = (
                [*map(json.loads, text.splitlines())] if lines else json.loads(text)
            )
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
        for name, path in (folders | {"~": Path.home()}).items():
            text = text.replace(str(path), name)
        return text


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
            record, output = run(step, min(left_s, SHARE_OF_A_STEP * args.budget_s))
            report.add(step, record, output)
            report.write()
            if record["status"] == INTERRUPTED:
                break
            if step.name == args.steps[0]:  # by now the package is built
                report.machine = machine()
    report.write()
    print(f"== wrote {report.out}")
    if any(
        report.steps[name]["status"].startswith("failed")
        for name in args.steps
        if name in report.steps
    ):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
