"""Builds the extension fastreduce._C against the torch that the environment has."""

import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterable
from pathlib import Path

from setuptools import setup

# pip's isolated build runs the environment's own interpreter but hides its packages. The extension
# is bound to one minor version of torch, so it must be built with the one that it will meet.
if importlib.util.find_spec("torch") is None:
    sys.path.append(sysconfig.get_paths()["purelib"])


# Native code for every generation, and PTX for what comes after. sm_80 code runs on 8.6 and 8.9.
ARCHITECTURES = "7.5;8.0;9.0;10.0;12.0+PTX"
ARCHITECTURES_BEFORE_CUDA_12_8 = "7.5;8.0;9.0+PTX"


NVCC_WHEELS = ("nvidia-cuda-nvcc", "nvidia-nvvm", "nvidia-cuda-crt")


def cuda_root() -> Path | None:
    """The toolkit's folder: nvcc on the PATH may be a script somewhere else.

    Where none is installed, the wheels of nvcc beside torch's own are one.
    """
    import torch

    nvcc = shutil.which("nvcc")
    candidates = [
        *(os.environ[name] for name in ("CUDA_HOME", "CUDA_PATH") if name in os.environ),
        *([Path(nvcc).resolve().parent.parent] if nvcc else []),
        "/usr/local/cuda",
        *Path(torch.__file__).parent.parent.glob("nvidia/cu*"),
    ]
    roots = (Path(path) for path in candidates)
    needs = ("bin/nvcc", "include/cuda_runtime_api.h")
    return next((x for x in roots if all((x / need).exists() for need in needs)), None)


def nvcc_version(root: Path) -> tuple[int, int]:
    text = subprocess.run([root / "bin" / "nvcc", "--version"], capture_output=True, text=True)
    found = re.search(r"release (\d+)\.(\d+)", text.stdout)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def cuda_runtime(root: Path, torch_folder: Path, major: int) -> Path | None:
    """The libcudart that torch loads, or else the toolkit's: some toolkits have headers only."""
    name = f"libcudart.so.{major}"
    beside = [*torch_folder.parent.glob(f"nvidia/*/lib/{name}"), torch_folder / "lib" / name]
    return next((x for x in [*beside, root / "lib64" / name] if x.exists()), None)


def missing_for_cuda() -> str | None:
    """What keeps the CUDA engines from being built, or None."""
    import torch

    root = cuda_root()
    if torch.version.cuda is None:
        return f"torch {torch.__version__} is a CPU build; pip install torch brings a CUDA build"
    if root is None:
        release = ".".join(torch.version.cuda.split(".")[:2])
        wheels = " ".join(f"{x}=={release}.*" for x in NVCC_WHEELS)
        return f"no CUDA toolkit found; set CUDA_HOME to its root, or pip install {wheels}"
    major, minor = nvcc_version(root)
    if (major, minor) < (12, 4) or major != int(torch.version.cuda.split(".")[0]):
        return f"nvcc {major}.{minor} does not fit torch's CUDA {torch.version.cuda}"
    if cuda_runtime(root, Path(torch.__file__).parent, major) is None:
        return f"no libcudart.so.{major} beside torch or in {root}"
    return None


def wants_cuda() -> bool:
    """Wherever nothing is missing; FASTREDUCE_CUDA=1 insists, and 0 leaves the CUDA engines out."""
    choice = os.environ.get("FASTREDUCE_CUDA", "")
    if choice not in ("", "0", "1"):
        sys.exit(f"FASTREDUCE_CUDA={choice}: want 0 (CPU only) or 1 (with CUDA)")
    missing = missing_for_cuda() if choice != "0" else "FASTREDUCE_CUDA=0"
    if missing and choice == "1":
        sys.exit(f"FASTREDUCE_CUDA=1, but {missing}")
    print("fastreduce: building", f"without CUDA: {missing}" if missing else "with CUDA")
    return not missing


# Some toolchains put a copy of libstdc++ into each module (-static-libstdc++). Beside the copy that
# torch has loaded, numbers were missing from messages, or writing one ended the process (g++ 12 and
# 13, 2026-11-26). Named before the compiler's own, the shared one is taken.
SHARED_LIBSTDCXX = "-l:libstdc++.so.6"


def cuda_arguments() -> dict:
    import torch

    root = cuda_root()
    version = nvcc_version(root)
    os.environ["CUDA_HOME"] = str(root)
    if not torch.cuda.is_available():  # else the GPU at hand
        known = ARCHITECTURES if version >= (12, 8) else ARCHITECTURES_BEFORE_CUDA_12_8
        os.environ.setdefault("TORCH_CUDA_ARCH_LIST", known)
    runtime = cuda_runtime(root, Path(torch.__file__).parent, version[0])
    return {
        "libraries": ["c10_cuda", "torch_cuda"],
        "library_dirs": [str(runtime.parent)],
        "extra_link_args": [f"-l:{runtime.name}", SHARED_LIBSTDCXX],
        "include_dirs": [str(root / "include")],
    }


def joined(name: str, sources: Iterable[Path]) -> Path:
    """A file, ``name``, that includes ``sources``: so they read torch's headers once, not each."""
    path = Path("build") / name
    text = "".join(f'#include "{x.absolute()}"\n' for x in sorted(sources))
    path.parent.mkdir(exist_ok=True)
    if not path.exists() or path.read_text() != text:  # else ninja would compile it again
        path.write_text(text)
    return path


def translation_units(csrc: Path, with_cuda: bool) -> list[Path]:
    """What the compilers are given: few files, since the headers take longer than our code.

    With all engines in one file a CPU build takes 46 s of one core, and 25 s on two; with a file
    for each 51 and 31 s (g++ 12, AMD EPYC, family 26 model 2, 2026-11-27). But with cores to spare
    the longest file decides. A file of kernels is compiled for one CPU instruction set, by pragmas
    that hold to its end, so it stays alone. The compilers are started in the order of the names:
    the longest first.
    """
    kernels = [*csrc.glob("cpu/reduce_*.cpp")]
    bindings = [csrc / "bindings.cpp", csrc / "python_call.cpp", *csrc.glob("simulation/*.cpp")]
    engines = {
        "host.cpp": {*csrc.glob("*.cpp"), *csrc.glob("cpu/*.cpp")} - {*kernels, *bindings},
        "processes.cpp": {*csrc.glob("processes/*.cpp")},
    }
    files = {"bindings.cpp": bindings}
    if with_cuda:
        engines["cuda_engines.cpp"] = {*csrc.glob("cuda/*.cpp")}
        files["cuda_kernels.cu"] = [*csrc.glob("cuda/*.cu")]
    few_cores = (os.cpu_count() or 1) <= 2
    files |= {"all_engines.cpp": set().union(*engines.values())} if few_cores else engines
    return [*kernels, *(joined(name, sources) for name, sources in files.items())]


def check_compiler() -> None:
    """Ends the build with words where it could only end with many errors, or not be loaded."""
    wanted = "wanted g++ 12 or later; set CXX to its name"
    compiler = os.environ.get("CXX", "c++")
    ask = [*shlex.split(compiler), "-x", "c++", "-dM", "-E", "-"]
    try:
        asked = subprocess.run(ask, input="", capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        sys.exit(f"fastreduce: the C++ compiler {compiler!r} cannot be run ({error}): {wanted}")
    macros = dict(re.findall(r"#define (\w+) (\w+)", asked.stdout))
    if "__clang__" in macros:  # whose OpenMP has another runtime than torch's
        sys.exit(f"fastreduce: the C++ compiler {compiler!r} is clang: {wanted}")
    if int(macros.get("__GNUC__", 0)) < 12:
        version = macros.get("__GNUC__", "not GNU's")
        sys.exit(f"fastreduce: the C++ compiler {compiler!r} is {version}: {wanted}")


def extension_arguments() -> dict:
    with_cuda = wants_cuda()
    # First: torch's helper looks for CUDA_HOME once.
    cuda = cuda_arguments() if with_cuda else {"extra_link_args": [SHARED_LIBSTDCXX]}
    from torch.utils.cpp_extension import BuildExtension, CppExtension, include_paths

    class Build(BuildExtension):
        def build_extensions(self) -> None:
            check_compiler()
            super().build_extensions()

    # By itself ninja starts two compilers more than there are cores, which holds up the longest.
    os.environ.setdefault("MAX_JOBS", str(os.cpu_count() or 1))
    csrc = Path("csrc")
    sources = translation_units(csrc, with_cuda)
    includes = [f"-I{csrc.absolute()}"]
    # The environment's own folders too, behind torch's: g++ looks into every -I before them, and
    # with another pybind11 that is found there the module does not load.
    own = [sysconfig.get_paths()["include"], sysconfig.get_paths()["platinclude"]]
    own += [f"{sys.prefix}/include"] if sys.prefix != sys.base_prefix else []  # not /usr/include
    found = [*include_paths(), *cuda.get("include_dirs", []), *own]
    includes += [option for path in dict.fromkeys(found) for option in ("-isystem", path)]
    # -O2: the kernels name their vector registers (csrc/cpu/simd.h), so -O3 would only take longer.
    # -isystem: warnings in torch's headers are not ours. -ffp-contract=off: the same bits on every
    # instruction set. -fopenmp only compiles: torch's own OpenMP runtime, already a dependency of
    # libtorch_cpu, is the one to share threads with, so none is linked.
    warnings = ["-Wall", "-Wextra"]
    extension = CppExtension(
        "fastreduce._C",
        sorted(map(str, sources)),
        depends=sorted(str(path) for path in csrc.rglob("*.*h")),
        extra_compile_args={
            "cxx": [
                *("-std=c++20", "-O2", "-g0", *warnings, "-ffp-contract=off", "-fopenmp"),
                *includes,
            ],
            # -fmad=false: no product is fused into a sum, so the bits are the CPU's.
            "nvcc": [
                *("-std=c++20", "-O3", "-fmad=false", "--expt-relaxed-constexpr", "--threads=2"),
                f"-Xcompiler={','.join([*warnings, '-Wno-unknown-pragmas'])}",
                *includes,
            ],
        },
        **cuda,
    )
    return {"ext_modules": [extension], "cmdclass": {"build_ext": Build}}


if importlib.util.find_spec("torch") is None:
    setup(setup_requires=["torch"])  # an empty environment: pip fetches it for this build
else:
    setup(**extension_arguments())
