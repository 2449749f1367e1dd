"""The steps of benchmarks/gpu_report.py: which command, what it needs, and what is kept of it."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from step import ROOT, Step

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
# It may let one kernel end before the next begins (NVIDIA/stdexec issue 964), and then those that
# wait for each other never would.
ALONE = "-k 'not flags'"
NO_CACHE = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
BENCHMARK = "benchmarks/allreduce.py"
FEW = "-b 64K -e 256M -f 64 -n 5 -d float32 --lists"
ALLREDUCE = {
    "kernels": "-e 1G -f 4 -n 5 -d float32 bfloat16 --engine tiles --algorithm auto leader sharded "
    "--against loop",
    "peers": f"{FEW} -k 2 8 --engine tiles --algorithm auto",
    "lists": "-e 1 -n 5 -d float32 --lists LeNet ResNet-18 ResNet-50 GPT-2 --engine tiles "
    "--algorithm auto --against loop foreach",
    "events": f"{FEW} -k 4 8 --engine tiles events flags --algorithm leader sharded ring --against",
}
TRAIN = "-m fastreduce train --devices cuda:0 --replicas 2 --epochs 4"
NCCL = "-m torch.distributed.run --standalone --nproc-per-node 2 benchmarks/two_ranks.py"
FIRST_NCCL_FOR_ONE_GPU = (2, 30)
NCU = (
    "--clock-control none --kernel-name-base demangled -k regex:fastreduce -s 1 -c 1 "
    "--section SpeedOfLight --section WarpStateStats --section LaunchStats"
)
PROFILED = (
    "-b 64M -e 64M -k 2 -n 1 -w 1 -d float32 --engine tiles --algorithm auto --lists --against"
)
OF_NCU = r"^ +(?:Duration|DRAM Throughput|Memory Throughput|Registers Per) .*|^.*\bstalled\b.*"
DENIED = r"^.*ERR_NVGPUCTRPERM.*"
METRICS, PICTURE = "metrics.jsonl", "learning_curve.png"  # of fastreduce train
REHEARSAL = {  # later flags win over earlier ones
    "pytest": "-m 'not gpu' -k test_allreduce",
    "allreduce": "-b 1K -e 8K -f 8 -n 1 -w 1 -k 2 -t 1 --lists LeNet --against loop",
    "train": "--devices cpu --epochs 1 --steps 2",
    "nccl": "--backend gloo --sizes 65536",
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


def nccl_lacks() -> str | None:
    if find_spec("torch") is None:
        return "torch is not installed"
    import torch

    version = torch.cuda.nccl.version() if torch.version.cuda else ()
    found = ".".join(map(str, version)) or "none"
    return None if version >= FIRST_NCCL_FOR_ONE_GPU else f"it takes NCCL 2.30, found {found}"


def steps(work: Path, rehearsal: bool = False) -> list[Step]:
    """All steps; what they measure they write into ``work``."""
    also = REHEARSAL if rehearsal else dict.fromkeys(REHEARSAL, "")
    tools = {name: cuda_tool(name) or name for name in ("nvcc", "compute-sanitizer", "ncu")}
    lacks = {name: f"{name} is not installed" for name, path in tools.items() if name == path}
    if not find_spec("pytest"):
        lacks["pytest"] = "pytest is not installed"
    # They share the GPU, which waits for them.
    workers = "-n 8" if find_spec("xdist") and not rehearsal else ""

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

    nccl = run("nccl", f"{NCCL} {also['nccl']}", "--out", work / "nccl.json")
    nccl = replace(nccl, needs=None if rehearsal else nccl_lacks(), result=work / "nccl.json")
    checked = tests("memcheck", f"{SMALL} {ALONE}", environment=NO_CACHE)
    profiled = run("ncu", f"{BENCHMARK} {PROFILED} {also['allreduce']}")
    builds = "a rehearsal" if rehearsal else lacks.get("nvcc")
    return [
        run("build", INSTALL, environment=BUILD, needs=builds),
        tests("smoke", SMALL),
        under([tools["compute-sanitizer"], *SANITIZER.split()], checked, lacks),
        tests("tests", f"{workers} {SMALL if rehearsal else 'tests/gpu'}"),
        *(measure(name) for name in ("kernels", "peers", "lists")),
        train("train", "--graph"),
        train("train_eager", ""),
        measure("events"),
        nccl,
        under([tools["ncu"], *NCU.split()], profiled, lacks, quotes=OF_NCU, denied=DENIED),
    ]


def under(tool: list[str], step: Step, lacks: dict[str, str], **about: Any) -> Step:
    """The step, started by a tool, which may be missing."""
    needs = step.needs or lacks.get(tool[0])
    return replace(step, command=[*tool, *step.command], needs=needs, **about)
