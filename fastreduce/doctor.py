"""One screen on what is installed, what it runs on, and what is missing."""

from __future__ import annotations

import os
import platform
import shutil
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

import torch

import fastreduce
from fastreduce import _C, algorithms
from fastreduce.plan.choose import VARIABLE, choose
from fastreduce.plan.table_files import tuned

# By package: its module, and what does not work without it.
PACKAGES = {
    "numpy": ("numpy", "no program is proven, so no allreduce; no plan, no train"),
    "matplotlib": ("matplotlib", "no pictures: draw, plan --draw, learning curves"),
    "networkx": ("networkx", "no topologies: simulate, plan --topology"),
    "nvidia-ml-py": (
        "pynvml",
        "no topology 'detect', and tuned times are kept without the GPUs' names",
    ),
    "safetensors": ("safetensors", "no train, no checkpoints, no parameters from such files"),
    "scipy": ("scipy", "no synthesize, no calibrate"),
    "platformdirs": ("platformdirs", "files are kept in the folders of the XDG standard"),
    "tqdm": ("tqdm", "no train, no tune"),
}


def report() -> str:
    """The screen that ``fastreduce doctor`` prints.

    >>> print(report().splitlines()[0].split()[0])
    fastreduce
    """
    sections = {
        "fastreduce": _package(),
        "extension": _extension(),
        "devices": _devices(),
        "missing": _missing() or [("nothing", "all that fastreduce uses on this machine is here")],
    }
    width = max(len(name) for lines in sections.values() for name, _ in lines)
    return "\n".join(
        line
        for title, lines in sections.items()
        for line in (title, *(f"  {name:<{width}}  {text}" for name, text in lines))
    )


def _package() -> list[tuple[str, str]]:
    return [
        ("version", fastreduce.__version__),
        ("from", str(Path(fastreduce.__file__).parent)),
        ("python", f"{platform.python_version()} on {platform.platform(terse=True)}"),
        ("torch", f"{torch.__version__}, {torch.get_num_threads()} threads"),
        *((name, _version(name)) for name in PACKAGES),
        ("algorithms", ", ".join(["auto", *algorithms.names()])),
        ("auto", _auto()),
    ]


def _auto() -> str:
    """What "auto" goes by, in the order in which `choose` asks."""
    if os.environ.get(VARIABLE) not in (None, "", "auto"):
        try:
            return f"{choose('cpu', 2, 1)}, which {VARIABLE} names"
        except ValueError as error:
            return str(error)
    table = tuned()
    return f"tuned on {table.date}" if table else "not tuned: `fastreduce tune`"


def _extension() -> list[tuple[str, str]]:
    return [
        ("file", str(_C.__file__)),
        ("built with", f"{_C.compiler}, for torch {_C.built_for_torch}"),
        ("CPU kernels", f"{_C.cpu_kernels()} (chosen at run time)"),
        (
            "CUDA engines",
            "built; tested on one H200, on several GPUs never run: pytest -m gpu tests them here"
            if _C.cuda_engines
            else "not built: CUDA tensors are refused (FASTREDUCE_CUDA=1 pip install says why)",
        ),
    ]


def _devices() -> list[tuple[str, str]]:
    lines = [("CPU", f"{os.cpu_count()} cores")]
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    for i in range(count):
        of = torch.cuda.get_device_properties(i)
        lines.append(
            (
                f"cuda:{i}",
                f"{of.name}, {of.total_memory / 1e9:.0f} GB, compute {of.major}.{of.minor}",
            )
        )
        peers = [
            f"cuda:{j}" for j in range(count) if j != i and torch.cuda.can_device_access_peer(i, j)
        ]
        lines.append(("  peers", ", ".join(peers) or "none"))
    if not count:
        lines.append(("GPUs", "none that torch can use, so no peer access"))
    return lines


def _missing() -> list[tuple[str, str]]:
    lines = [
        (name, f"{cost}; pip install {name}")
        for name, (module, cost) in PACKAGES.items()
        if find_spec(module) is None
    ]
    if torch.version.cuda is None:
        lines.append(
            (
                "CUDA in torch",
                "a CPU build, so no GPU is used; for GPUs: pip install --force-reinstall torch, "
                "then fastreduce again",
            )
        )
    elif not torch.cuda.is_available():
        lines.append(("NVIDIA driver", f"torch has CUDA {torch.version.cuda} but finds no GPU"))
    if shutil.which("nvcc") is None:
        lines.append(("nvcc", "no CUDA compiler on the PATH; needed to build CUDA engines only"))
    return lines + _missing_data()


def _missing_data() -> list[tuple[str, str]]:
    try:
        from fastreduce.training.data import folder_here
    except ImportError:  # of a package that is missing, which has its own line
        return []
    try:
        if folder_here():
            return []
        wanted = "`fastreduce train` will fetch it; or: apt-get install dataset-fashion-mnist"
    except FileNotFoundError as error:  # of a folder that the environment names
        wanted = str(error)
    return [("Fashion-MNIST", wanted)]


def _version(name: str) -> str:
    if name in PACKAGES and find_spec(PACKAGES[name][0]) is None:
        return "missing"
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "of unknown version"
