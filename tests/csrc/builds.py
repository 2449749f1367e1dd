"""C++ test programs, built from sources of csrc (or of a changed copy) with g++ and a sanitizer."""

import hashlib
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest
from filelock import FileLock
from torch.utils.cpp_extension import include_paths, library_paths

CSRC = Path(__file__).parents[2] / "csrc"
VIRTUAL_CUDA = Path(__file__).parent / "virtual_cuda"
FOR_VIRTUAL_CUDA = (f"-I{VIRTUAL_CUDA}", "-Wno-unknown-pragmas")
CXX = os.environ.get("CXX", "g++")
FLAGS = ("-std=c++20", "-O1", "-g1", "-Wall", "-Wextra", "-Werror", "-ffp-contract=off", "-pthread")
SANITIZERS = {
    "plain": (),
    "address": ("-fsanitize=address,undefined", "-fno-sanitize-recover=all"),
    "thread": ("-fsanitize=thread",),
}
# For what names torch's devices.
LIBC10 = [f"{how}{x}" for x in library_paths() for how in ("-L", "-Wl,-rpath,")]
LIBC10 += ["-Wl,--as-needed", "-lc10"]

needs_compiler = pytest.mark.skipif(not shutil.which(CXX), reason=f"no compiler {CXX}")


@dataclass(frozen=True)
class Build:
    """Object files of one sanitizer, over the sources in ``csrc``."""

    sanitizer: str
    folder: Path
    csrc: Path = CSRC

    def source(self, path: Path) -> Path:
        """The file of this build's csrc, where the path is one of csrc."""
        return self.csrc / path.relative_to(CSRC) if path.is_relative_to(CSRC) else path

    def compile(self, source: Path, *options: object) -> Path:
        """Once for each source and options: other processes that want it too wait for it."""
        key = " ".join(map(str, [self.sanitizer, source, *options]))
        name = f"{'_'.join(source.parts[-2:])}.{hashlib.sha256(key.encode()).hexdigest()[:8]}.o"
        made = self.folder / name
        includes = [f"-I{self.csrc}", *(f"-isystem{path}" for path in include_paths())]
        self.folder.mkdir(parents=True, exist_ok=True)
        with FileLock(made.with_suffix(".lock")):
            if not made.exists():
                self._call(*FLAGS, *includes, *options, "-x", "c++", "-c", source, "-o", made)
        return made

    def link(self, objects: list[Path], folder: Path, *libraries: str) -> Path:
        """``libraries`` are torch's, beside c10."""
        named = [f"-l{name}" for name in libraries]
        self._call("-pthread", *objects, "-ldl", *LIBC10, *named, "-o", folder / "test")
        return folder / "test"

    def library(self, source: Path, folder: Path, name: str) -> Path:
        """A shared library of that name."""
        made = folder / name
        self._call(*FLAGS, "-shared", "-fPIC", f"-Wl,-soname,{name}", source, "-o", made)
        return made

    def _call(self, *arguments: object) -> None:
        command = [CXX, *SANITIZERS[self.sanitizer], *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr


def run(program: Path, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    # The first race ends the program: where there are thousands, each report takes its time. The
    # limit is for programs that hang. The longest, calls that fail under AddressSanitizer, takes
    # 48 s (2 virtual cores of an AMD EPYC, 2026-11-28), and a multiple beside other tests.
    return subprocess.run(
        [program, *arguments],
        env={**os.environ, "TSAN_OPTIONS": "halt_on_error=1"},
        capture_output=True,
        text=True,
        timeout=1200,
        check=False,
    )


def mutated(folder: Path, file: str, text: str, other: str) -> Path:
    """A copy of csrc in which one text, which must be there once, is another."""
    csrc = folder / "csrc"
    shutil.copytree(CSRC, csrc)
    before = (csrc / file).read_text()
    assert before.count(text) == 1, f"{file} has changed: say this mutant anew"
    (csrc / file).write_text(before.replace(text, other))
    return csrc
