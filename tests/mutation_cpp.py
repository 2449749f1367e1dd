"""The C++ half of mutation.py: the extension for the CPU, and the CUDA engines on the virtual CUDA
runtime. A changed file is compiled alone and linked with the others' objects."""

from __future__ import annotations

import importlib
import importlib.machinery
import subprocess
import sys
import sysconfig
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from mutated_files import EXTENSION, FEW, KERNELS, LONG, MODES, PROCESSES
from mutation_python import LIMIT_S, Workspace, in_a_fork


def runs(*command: object) -> bool:
    """Whether a program ends in time, and well."""
    try:
        done = subprocess.run(command, capture_output=True, check=False, timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0


class Extension(Workspace):
    """The extension for the CPU, and the object file of each of its sources."""

    tests = EXTENSION

    def __init__(self, folder: Path) -> None:
        from torch.utils.cpp_extension import include_paths, library_paths

        super().__init__(folder)
        includes = [*include_paths(), sysconfig.get_paths()["include"]]
        self.options = ["-std=c++20", "-O1", "-g0", "-fPIC", "-w", "-ffp-contract=off", "-fopenmp"]
        self.options += ["-DTORCH_EXTENSION_NAME=_C", f"-I{folder / 'csrc'}"]
        self.options += [option for path in includes for option in ("-isystem", path)]
        self.libraries = [f"-L{path}" for path in library_paths()]
        self.libraries += ["-lc10", "-ltorch", "-ltorch_cpu", "-ltorch_python"]
        suffix = importlib.machinery.EXTENSION_SUFFIXES[0]
        self.extension = folder / "fastreduce" / f"_C{suffix}"
        self.objects: dict[str, Path] = {}

    def prepare(self) -> None:
        self.compile_all()
        self.unchanged = {file: path.read_bytes() for file, path in self.objects.items()}
        if not self.link():
            sys.exit("the unchanged files do not link")

    def change(self, file: str, text: str) -> bool:
        (self.folder / file).write_text(text)
        if not self.compile(file) or self.objects[file].read_bytes() == self.unchanged[file]:
            return False
        return self.link()

    def restore(self, file: str) -> None:
        super().restore(file)
        self.link()

    def compile_all(self) -> None:
        found = [x for x in (self.folder / "csrc").rglob("*.cpp") if x.parent.name != "cuda"]
        for path in found:
            file = str(path.relative_to(self.folder))
            self.objects[file] = self.folder / f"{file.replace('/', '_')}.o"
        with ThreadPoolExecutor(2) as workers:
            compiled = dict(zip(self.objects, workers.map(self.compile, self.objects), strict=True))
        if not all(compiled.values()):
            sys.exit(f"does not compile alone: {sorted(x for x in compiled if not compiled[x])}")

    def compile(self, file: str) -> bool:
        fast = ["-O2"] if "reduce_" in file else []
        command = ["g++", *self.options, *fast, "-c", self.folder / file, "-o", self.objects[file]]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0

    def link(self) -> bool:
        self.extension.unlink(missing_ok=True)
        command = ["g++", "-shared", *self.objects.values(), *self.libraries, "-o", self.extension]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0


class Processes(Extension):
    """The extension, and the engine for processes with threads as ranks, under ThreadSanitizer."""

    tests = PROCESSES

    def prepare(self) -> None:
        super().prepare()
        if not in_a_fork(self._threads_pass):
            sys.exit("the engine for processes fails its test without a change")

    def passes(self, file: str) -> bool:
        return super().passes(file) and in_a_fork(self._threads_pass, file.removeprefix("csrc/"))

    def _threads_pass(self, changed: str = "") -> bool:
        folders = ("tests/csrc/processes", "tests/csrc", "tests", "")
        sys.path[:0] = [str(self.folder / folder) for folder in folders]
        import test_flags as threads  # and with it the extension, as it is now
        from builds import Build
        from program_files import write_programs

        for alone in map(importlib.import_module, ("test_heap", "test_labels", "test_watch")):
            if changed == alone.FILE:
                return runs(alone.built(Path(tempfile.mkdtemp(dir=self.folder))))
        if changed and changed not in threads.PARTS:
            return True
        build = Build("thread", self.folder / "objects")
        changed_alone = Build("thread", Path(tempfile.mkdtemp(dir=self.folder)))
        parts = {
            name: (changed_alone if name == changed else build).compile(*how, "-w")
            for name, how in threads.PARTS.items()
        }
        programs = [*threads.programs_of_processes()]
        arguments = [write_programs(self.folder / "programs.txt", programs)]
        tests = (
            *((threads.BELL, []), (threads.RANK_SCHEDULE, arguments)),
            *((threads.FAILURES, []), (threads.PROGRAMS, arguments)),
        )
        return all(
            runs(build.link([parts[name] for name in names], self.folder), *given)
            for names, given in tests
        )


class VirtualGpus(Extension):
    """The CUDA engines and their test, for the virtual CUDA runtime."""

    tests = MODES
    module, sanitizer = "test_engines", "plain"

    def compile_all(self) -> None:
        folders = ("tests/csrc/cuda", "tests/csrc", "tests", "")
        sys.path[:0] = [str(self.folder / folder) for folder in folders]
        for name in ("builds", "program_files", "virtual_builds"):
            sys.modules.pop(name, None)  # of another kind's folder
        from builds import Build
        from program_files import every_program, programs_of_processes, write_programs
        from virtual_builds import HERE, compile_all

        self.build = Build(self.sanitizer, self.folder / "objects")
        self.sources = importlib.import_module(self.module).SOURCES
        self.objects = {
            f"csrc/{name}": path for name, path in compile_all(self.build, self.sources).items()
        }
        self.objects |= {file: self.objects["csrc/kernels"] for file in KERNELS}
        self.programs = write_programs(self.folder / "programs.txt")
        self.of_processes = write_programs(self.folder / "all.txt", [*programs_of_processes()])
        few = [x for x in every_program() if x.name in FEW]
        self.few = write_programs(self.folder / "few.txt", few)
        nvml = HERE / "virtual_nvml.cpp"
        self.nvml = self.build.library(nvml, self.folder, "libnvidia-ml.so.1")

    def compile(self, file: str) -> bool:
        self.objects[file].unlink(missing_ok=True)
        source = "kernels" if file in KERNELS else file.removeprefix("csrc/")
        try:
            self.sources[source].compile(self.build)
        except AssertionError:
            return False
        return True

    def link(self) -> bool:
        try:
            self.program = self.build.link([*dict.fromkeys(self.objects.values())], self.folder)
        except AssertionError:
            return False
        return True

    def passes(self, file: str) -> bool:
        modes = self.tests[file]
        long = [mode for mode in modes if mode in LONG]
        return all(self._passes(mode, self.few) for mode in long) and all(
            self._passes(mode, self.programs) for mode in modes
        )

    def _passes(self, mode: str, programs: Path) -> bool:
        kept = self.folder / "kept.txt"
        kept.unlink(missing_ok=True)
        return runs(self.program, mode, programs, kept if mode.startswith("kept") else "0")


class Placement(VirtualGpus):
    """What connects torch's devices and streams to the CUDA engines."""

    tests = dict.fromkeys(["csrc/cuda/engine.cpp"])
    module = "test_placement"

    def passes(self, file: str) -> bool:
        def passes(first: str) -> bool:
            (self.folder / "peer_access.txt").unlink(missing_ok=True)
            return runs(self.program, self.programs, self.nvml, self.folder, first)

        return passes("place") and passes("run")


class ProcessesOnGpus(VirtualGpus):
    """The engine for processes on virtual GPUs, with threads as ranks, under ThreadSanitizer."""

    tests = dict.fromkeys(
        [
            "csrc/cuda/ipc.cpp",
            "csrc/cuda/mark.cpp",
            "csrc/cuda/processes.cpp",
            "csrc/processes/devices.cpp",
        ]
    )
    module, sanitizer = "test_processes", "thread"

    def passes(self, file: str) -> bool:
        return runs(self.program, self.of_processes, "3") and runs(self.program, self.of_processes)
