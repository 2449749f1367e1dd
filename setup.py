"""Builds the extension fastreduce._C against the torch that the environment has."""

import importlib.util
import os
import sys
import sysconfig
from pathlib import Path

from setuptools import setup

# pip's isolated build runs the environment's own interpreter but hides its packages. The extension
# is bound to one minor version of torch, so it must be built with the one that it will meet.
if importlib.util.find_spec("torch") is None:
    sys.path.append(sysconfig.get_paths()["purelib"])


def check_cuda_choice() -> None:
    """FASTREDUCE_CUDA=0|1 forces the choice; this version has CPU engines only."""
    choice = os.environ.get("FASTREDUCE_CUDA", "0")
    if choice == "1":
        sys.exit(
            "FASTREDUCE_CUDA=1: this version of fastreduce has no CUDA engines to build; "
            "unset it, or set it to 0, to build the CPU extension"
        )
    if choice != "0":
        sys.exit(f"FASTREDUCE_CUDA={choice}: want 0 (CPU only) or 1 (with CUDA)")


def extension_arguments() -> dict:
    from torch.utils.cpp_extension import BuildExtension, CppExtension, include_paths

    # -isystem: warnings in torch's headers are not ours. -ffp-contract=off: the same bits on every
    # instruction set. -fopenmp only compiles: torch's own OpenMP runtime, already a dependency of
    # libtorch_cpu, is the one to share threads with, so none is linked.
    extension = CppExtension(
        "fastreduce._C",
        sorted(str(path) for path in Path("csrc").glob("*.cpp")),
        depends=sorted(str(path) for path in Path("csrc").glob("*.h")),
        extra_compile_args=[
            *("-std=c++20", "-O3", "-g0", "-Wall", "-Wextra", "-ffp-contract=off", "-fopenmp"),
            *(f"-isystem{path}" for path in include_paths()),
        ],
    )
    return {"ext_modules": [extension], "cmdclass": {"build_ext": BuildExtension}}


check_cuda_choice()
if importlib.util.find_spec("torch") is None:
    setup(setup_requires=["torch"])  # an empty environment: pip fetches it for this build
else:
    setup(**extension_arguments())
