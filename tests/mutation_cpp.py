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

from mutation_python import LIMIT_S, Workspace, in_a_fork

# By source, the tests that belong to it, those that find most first.
TESTS = {
    "csrc/overlap.cpp": ("collectives/test_exact_overlap.py", "collectives/test_errors.py"),
    "csrc/check.cpp": ("collectives/test_errors.py", "collectives/test_errors_of_settings.py",
                       "collectives/test_autograd.py"),
    "csrc/tables.cpp": ("collectives/test_lists.py", "collectives/test_lazy_views.py",
                        "collectives/test_autograd.py", "collectives/test_layouts.py",
                        "collectives/test_collectives.py"),
    **{f"csrc/{name}.cpp": tuple(f"{test}.py" for test in tests)
       for name, tests in {
           "call": ("collectives/test_errors", "collectives/test_collectives",
                    "collectives/test_lists", "collectives/test_errors_of_settings",
                    "collectives/test_layouts", "collectives/test_autograd",
                    "collectives/test_compile"),
           "dispatcher": ("collectives/test_autograd", "collectives/test_collectives",
                          "collectives/test_compile", "collectives/test_lists"),
           "dtypes": ("collectives/test_bits", "collectives/test_collectives",
                      "collectives/test_layouts", "collectives/test_lists",
                      "collectives/test_errors"),
           "engine": ("collectives/test_collectives", "collectives/test_errors_of_settings"),
           "replicas": ("parallel/test_sums_of_replicas", "parallel/test_like_the_bare_module",
                        "parallel/test_reproducible", "parallel/test_derivatives",
                        "parallel/test_parallel_errors"),
           "cpu/engine": ("collectives/test_collectives", "collectives/test_errors_of_settings"),
           "cpu/kernels": ("collectives/test_bits", "collectives/test_errors_of_settings"),
       }.items()},
    "csrc/programs.cpp": ("collectives/test_lists.py", "plan/test_choose.py",
                          "collectives/test_threads.py"),
    "csrc/cpu/tiles.cpp": ("collectives/test_collectives.py", "collectives/test_allreduce.py",
                           "collectives/test_threads.py"),
    **{f"csrc/simulation/{name}.cpp": tuple(f"{test}.py" for test in tests)
       for name, tests in {
           "proof": ("test_proof", "collectives/test_collectives"),
           "dependencies": ("test_program", "simulation/test_simulate"),
           "stages": ("simulation/test_simulate", "simulation/test_random_programs"),
           "tasks": ("simulation/test_simulate", "simulation/test_random_programs"),
           "play": ("simulation/test_simulate", "simulation/test_random_programs",
                    "simulation/test_overheads", "simulation/test_predict"),
           "simulation": ("simulation/test_simulate", "simulation/test_predict",
                          "simulation/test_run"),
           "paths": ("simulation/test_simulate", "simulation/test_overheads",
                     "simulation/test_predict"),
           "network": ("simulation/test_flows", "simulation/test_simulate"),
           "max_min": ("simulation/test_flows", "simulation/test_simulate"),
           "routes": ("topology/test_graph", "simulation/test_simulate"),
           "idle": ("test_program", "plan/test_slices"),
       }.items()},
}  # fmt: skip

# The same for the CUDA engines, by modes: what each file is for, then everything,
# the short ones first.
EVERYTHING = ("pools", "closed memory", "copies", "capture", "graphs", "graphs, no peers",
              "beside", "same addresses", "lost writes", "few peers", "pairs of peers", "no peers",
              "limits", "orders", "failures, no peers", "failures")  # fmt: skip
# What the kernels' object file is made from.
KERNELS = ("csrc/reduce.h", "csrc/cuda/reduce_rows.cuh", "csrc/cuda/signals.cuh")
# Long modes are tried with a few programs first, in a quarter of the time.
LONG, FEW = {"flags", "orders"}, {"leader", "ring", "scrambled", "sharded"}
MODES = {
    "csrc/cuda/closed_memory.cpp": ("pools", "closed memory", "failures"),
    "csrc/cuda/trial.cpp": ("kernels hang", "copies hang", "nvlinks", "lost writes", "wrong reads",
                            "lost copies", "orders", "failures"),
    "csrc/cuda/peers.cpp": ("kernels hang", "copies hang", "nvlinks", "nvlinks without NVML",
                            "kept proofs", *EVERYTHING),
    "csrc/cuda/proofs.cpp": ("kept proofs", "kept failures"),
    "csrc/cuda/nvml.cpp": ("nvlinks", "nvlinks without NVML"),
    **{f"csrc/cuda/{name}.cpp": (*EVERYTHING, "pieces") for name in ("enqueue", "lanes")},
    **{f"csrc/cuda/{name}.cpp": EVERYTHING
       for name in ("call_graph", "graph_cache", "lane_sets", "line", "tiles")},
    "csrc/cuda/events.cpp": (*EVERYTHING, "flags"),
    "csrc/cuda/launch.cpp": ("copies", "capture", "graphs", "no peers", "limits", "orders",
                             "flags"),
    "csrc/cuda/flags.cpp": ("flags",),
    "csrc/cuda/signals.cuh": ("flags",),
    "csrc/cuda/reduce_rows.cuh": ("copies", "limits", "orders", "flags"),
    "csrc/reduce.h": ("limits", "orders"),
}  # fmt: skip


# The same for the backend of torch.distributed. Of the files that test_flags.py or test_heap.py
# compiles, its tests with threads follow.
PROCESSES = {
    f"csrc/processes/{name}.cpp": tuple(f"distributed/test_{test}.py" for test in tests)
    for name, tests in {
        "flags": ("backend_values", "backend_groups"),
        "group": ("backend_values", "backend_invitations", "backend_errors", "backend_groups",
                  "backend_failures"),
        "invitations": ("backend_invitations", "meeting"),
        "across": ("across",),
        "machines": ("across",),
        "machine_sums": ("across",),
        "gloo": ("backend_gloo", "across"),
        "rank_schedule": ("backend_values", "backend_errors"),
        "failures": ("backend_failures", "backend_errors"),
        "heap": ("empty", "backend_values"),
        "memory": ("backend_invitations", "empty", "backend_errors", "backend_groups"),
        "checks": ("backend_errors", "backend_values"),
        "items": ("backend_values", "backend_groups"),
        "collectives": ("backend_values", "backend_errors", "backend_groups", "programs"),
        "queue": ("backend_errors", "backend_failures", "backend_groups", "programs"),
        "bell": ("backend_values",),
        "labels": ("backend_errors", "backend_failures", "send_recv"),
        "watch": ("backend_failures", "backend_errors"),
        "chaos": ("chaos",),
        "delegated": ("backend_values", "backend_errors", "backend_groups", "backend_gloo"),
        "point_to_point": ("send_recv", "backend_errors", "backend_failures"),
        "backend": ("backend_errors", "backend_groups", "backend_values", "empty"),
    }.items()
}  # fmt: skip


def runs(*command: object) -> bool:
    """Whether a program ends in time, and well."""
    try:
        done = subprocess.run(command, capture_output=True, check=False, timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0


class Extension(Workspace):
    """The extension for the CPU, and the object file of each of its sources."""

    tests = TESTS

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
        import test_heap as heap
        from builds import Build
        from program_files import write_programs

        if changed == heap.FILE:
            return runs(heap.built(Path(tempfile.mkdtemp(dir=self.folder))))
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
        ["csrc/cuda/ipc.cpp", "csrc/cuda/processes.cpp", "csrc/processes/devices.cpp"]
    )
    module, sanitizer = "test_processes", "thread"

    def passes(self, file: str) -> bool:
        return runs(self.program, self.of_processes, "3") and runs(self.program, self.of_processes)
