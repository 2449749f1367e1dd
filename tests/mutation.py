"""Counts which small changes of the sources the tests notice. Run by hand; the results are in
tests/mutation.md, which also names the changes that make no difference.

    pip install universalmutator ruff
    python tests/mutation.py csrc/overlap.cpp fastreduce/program.py --sample 20 --seed 1

universalmutator writes every mutant of a file; of these a sample is taken. A C++ mutant is compiled
alone and linked with the objects of the unchanged files. One that gives the same object file, or
the same syntax tree in Python, is no change and is not counted. Then the tests that belong to the
file run in a process of their own until one fails. Those of csrc/cuda are the modes of
tests/csrc/cuda/engines_test.cpp, on the virtual CUDA runtime.
"""

from __future__ import annotations

import argparse
import ast
import importlib.machinery
import json
import multiprocessing
import os
import random
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "tests" / "mutation.md"
# A mutant that runs so long hangs: unchanged, the tests of a file take about a tenth.
LIMIT_S = 400

# By source, the tests that belong to it, those that find most first.
TESTS = {
    "csrc/overlap.cpp": ("collectives/test_exact_overlap.py", "collectives/test_errors.py"),
    "csrc/check.cpp": ("collectives/test_errors.py", "collectives/test_autograd.py"),
    "csrc/tables.cpp": ("collectives/test_lists.py", "collectives/test_lazy_views.py",
                        "collectives/test_autograd.py", "collectives/test_layouts.py",
                        "collectives/test_collectives.py"),
    "csrc/programs.cpp": ("collectives/test_lists.py", "plan/test_choose.py",
                          "collectives/test_threads.py"),
    "csrc/cpu/tiles.cpp": ("collectives/test_collectives.py", "collectives/test_allreduce.py",
                           "collectives/test_threads.py"),
    "fastreduce/program.py": ("test_rank_order.py", "test_program.py", "test_proof.py"),
    "fastreduce/collectives.py": ("collectives",),
    "fastreduce/plan/build.py": ("plan/test_build.py", "collectives/test_lists.py"),
    "fastreduce/plan/candidates.py": ("plan/test_explain.py",),
    "fastreduce/plan/choose.py": ("plan/test_choose.py", "plan/test_build.py"),
    "fastreduce/plan/table.py": ("plan/test_table.py", "plan/test_table_files.py"),
}  # fmt: skip

# The same for the CUDA engines, by modes: what each file is for, then everything.
EVERYTHING = ("pools", "closed memory", "capture", "graphs", "graphs, no peers", "beside", "limits",
              "lost writes", "few peers", "pairs of peers", "no peers", "same addresses", "pieces",
              "orders", "failures, no peers", "failures")  # fmt: skip
MODES = {
    "csrc/cuda/closed_memory.cpp": ("pools", "closed memory", "failures"),
    "csrc/cuda/trial.cpp": ("kernels hang", "copies hang", "nvlinks", "lost writes", "wrong reads",
                            "lost copies", "orders", "failures"),
    "csrc/cuda/peers.cpp": ("kernels hang", "copies hang", "nvlinks", "nvlinks without NVML",
                            "kept proofs", *EVERYTHING),
    "csrc/cuda/proofs.cpp": ("kept proofs", "kept failures"),
    "csrc/cuda/nvml.cpp": ("nvlinks", "nvlinks without NVML"),
    **{f"csrc/cuda/{name}.cpp": EVERYTHING
       for name in ("call_graph", "enqueue", "events", "graph_cache", "lane_sets", "lanes",
                    "launch", "line", "tiles")},
}  # fmt: skip


class Result(NamedTuple):
    file: str
    line: int
    before: str
    after: str
    verdict: str  # "killed", "survived"

    @property
    def name(self) -> str:
        """How the page names a mutant that makes no difference. With the line, because a judgement
        holds where it was made: a file that has changed is judged again."""
        return f"`{self.file}:{self.line}`: `{self.before}` -> `{self.after}`"


class Workspace:
    """A copy of the repository, and the extension's object files, one for each source."""

    def __init__(self, folder: Path) -> None:
        from torch.utils.cpp_extension import include_paths, library_paths

        self.folder = folder
        for name in ("csrc", "fastreduce", "tests", "benchmarks", "docs", "pyproject.toml"):
            copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy2
            copy(ROOT / name, folder / name)
        includes = [*include_paths(), sysconfig.get_paths()["include"]]
        self.options = ["-std=c++20", "-O1", "-g0", "-fPIC", "-w", "-ffp-contract=off", "-fopenmp"]
        self.options += ["-DTORCH_EXTENSION_NAME=_C", f"-I{folder / 'csrc'}"]
        self.options += [option for path in includes for option in ("-isystem", path)]
        self.libraries = [f"-L{path}" for path in library_paths()]
        self.libraries += ["-lc10", "-ltorch", "-ltorch_cpu", "-ltorch_python"]
        suffix = importlib.machinery.EXTENSION_SUFFIXES[0]
        self.extension = folder / "fastreduce" / f"_C{suffix}"
        self.objects: dict[str, Path] = {}

    def compile(self, file: str) -> Path | None:
        """None: the compiler refuses the file."""
        made = self.folder / f"{file.replace('/', '_')}.o"
        fast = ["-O2"] if "reduce_" in file else []
        command = ["g++", *self.options, *fast, "-c", self.folder / file, "-o", made]
        done = subprocess.run(command, capture_output=True, check=False)
        return made if done.returncode == 0 else None

    def compile_all(self) -> None:
        found = [x for x in (self.folder / "csrc").rglob("*.cpp") if x.parent.name != "cuda"]
        files = [str(path.relative_to(self.folder)) for path in sorted(found)]
        with ThreadPoolExecutor(2) as workers:
            made = dict(zip(files, workers.map(self.compile, files), strict=True))
        self.objects = {file: path for file, path in made.items() if path}
        if len(self.objects) < len(files) or not self.link():
            sys.exit(f"does not compile alone: {sorted({*files} - {*self.objects})}")

    def passes(self, file: str) -> bool:
        return passes(self.folder, TESTS[file])

    def link(self) -> bool:
        self.extension.unlink(missing_ok=True)
        command = ["g++", "-shared", *self.objects.values(), *self.libraries, "-o", self.extension]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0


class VirtualWorkspace(Workspace):
    """The engines and their test, for the virtual CUDA runtime."""

    def compile_all(self) -> None:
        folders = ("tests/csrc/cuda", "tests/csrc", "tests", "")
        sys.path[:0] = [str(self.folder / folder) for folder in folders]
        from builds import Build
        from program_files import write_programs
        from test_engines import HERE, SOURCES
        from virtual_builds import compile_all

        self.build, self.sources = Build("plain", self.folder / "objects"), SOURCES
        self.objects = {
            f"csrc/{name}": path for name, path in compile_all(self.build, SOURCES).items()
        }
        self.programs = write_programs(self.folder / "programs.txt")
        self.build.library(HERE / "virtual_nvml.cpp", self.folder, "libnvidia-ml.so.1")
        self.link()

    def compile(self, file: str) -> Path | None:
        self.objects[file].unlink(missing_ok=True)
        try:
            return self.sources[file.removeprefix("csrc/")].compile(self.build)
        except AssertionError:
            return None

    def link(self) -> bool:
        self.program = self.build.link([*self.objects.values()], self.folder)
        return True

    def passes(self, file: str) -> bool:
        return all(self._runs(mode) for mode in MODES[file])

    def _runs(self, mode: str) -> bool:
        kept = self.folder / "kept.txt"
        kept.unlink(missing_ok=True)
        command = [self.program, mode, self.programs, kept if mode.startswith("kept") else "0"]
        try:
            done = subprocess.run(command, capture_output=True, check=False, timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            return False
        return done.returncode == 0


def tree_of(text: str) -> str | None:
    """What the interpreter sees: no comments, no docstrings. None: what a linter refuses, as a
    compiler does in C++: no Python, or names that nobody has defined."""
    try:
        tree = ast.parse(text)
        compile(tree, "mutant", "exec")
    except SyntaxError:
        return None
    undefined = ["ruff", "check", "--isolated", "--quiet", "--select=F821", "-"]
    if subprocess.run(undefined, input=text, text=True, stdout=subprocess.DEVNULL).returncode:
        return None
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list) and body and isinstance(body[0], ast.Expr):
            value = body[0].value
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                value.value = ""
    return ast.dump(tree)


def _run_tests(folder: Path, tests: tuple[str, ...]) -> None:
    os.chdir(folder)
    sys.path.insert(0, str(folder))
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)
    os.dup2(quiet, 2)
    import pytest

    options = ["-x", "-q", "-o", "addopts=", "-p", "no:cacheprovider", "--hypothesis-seed=0"]
    os._exit(pytest.main([*options, *(f"tests/{test}" for test in tests)]))


def passes(folder: Path, tests: tuple[str, ...]) -> bool:
    """A process that dies or hangs has not passed. torch is imported before the fork, once."""
    process = multiprocessing.get_context("fork").Process(target=_run_tests, args=(folder, tests))
    process.start()
    process.join(LIMIT_S)
    if process.is_alive():
        process.kill()
        process.join()
    return process.exitcode == 0


def mutants_of(file: str, folder: Path) -> list[Path]:
    """Every mutant of a file. Those of strings, which are messages, are left out."""
    folder.mkdir()
    command = ["mutate", ROOT / file, "--noCheck", "--mutantDir", folder]
    subprocess.run(command, check=True, capture_output=True)
    return sorted(folder.iterdir())


def changed_line(before: str, after: str) -> tuple[int, str, str]:
    lines, others = before.splitlines(), after.splitlines()
    same = next((i for i, (x, y) in enumerate(zip(lines, others, strict=False)) if x != y), 0)
    until = len(others) - len(lines) + same + 1
    return same + 1, lines[same].strip(), " ".join(x.strip() for x in others[same:until])


def judged(work: Workspace, file: str, sample: int, seed: int) -> list[Result]:
    """The verdicts on a sample of a file's mutants."""
    path, original = work.folder / file, (ROOT / file).read_text()
    is_cpp = file.endswith(".cpp")
    unchanged = work.objects[file].read_bytes() if is_cpp else tree_of(original)
    candidates = mutants_of(file, work.folder / f"mutants-{Path(file).name}")
    random.Random(seed).shuffle(candidates)
    results: list[Result] = []
    for candidate in candidates:
        text = candidate.read_text()
        path.write_text(text)
        if is_cpp:
            made = work.compile(file)
            is_mutant = made and made.read_bytes() != unchanged and work.link()
        else:
            is_mutant = tree_of(text) not in (None, unchanged)
        if is_mutant:
            verdict = "survived" if work.passes(file) else "killed"
            results.append(Result(file, *changed_line(original, text), verdict))
            print(*results[-1], sep="\t", flush=True)
        if len(results) == sample:
            break
    path.write_text(original)
    if is_cpp:
        work.compile(file)
        work.link()
    return results


def table(results: list[Result]) -> str:
    """A row a file. Survivors that the page names as equivalent are counted apart."""
    page = PAGE.read_text() if PAGE.exists() else ""
    lines = ["| file | mutants | killed | survived | equivalent | killed of the others |"]
    lines.append("|---|---|---|---|---|---|")
    for file in [*dict.fromkeys(x.file for x in results), ""]:
        mine = [x for x in results if file in ("", x.file)]
        count = Counter(
            "equivalent" if x.verdict == "survived" and x.name in page else x.verdict for x in mine
        )
        share = count["killed"] / max(1, len(mine) - count["equivalent"])
        cells = [len(mine), count["killed"], count["survived"], count["equivalent"]]
        lines.append(f"| {file or 'all'} | {' | '.join(map(str, cells))} | {share:.0%} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument(
        "files", nargs="*", default=[*TESTS, *MODES], help="default: all that it knows"
    )
    parser.add_argument("--sample", type=int, default=20, help="mutants of each file")
    parser.add_argument("--seed", type=int, default=1, help="of the sample")
    parser.add_argument("--keep", type=Path, help="results as JSON; those of other runs stay")
    args = parser.parse_args()
    results = []
    if args.keep and args.keep.exists():
        results = [Result(*x) for x in json.loads(args.keep.read_text()) if x[0] not in args.files]
    import torch  # noqa: F401

    for kind, known in ((Workspace, TESTS), (VirtualWorkspace, MODES)):
        files = [file for file in args.files if file in known]
        if not files:
            continue
        with tempfile.TemporaryDirectory() as folder:
            work = kind(Path(folder))
            # For Python alone, the extension is as it was built.
            if any(file.endswith(".cpp") for file in files):
                work.compile_all()
            for file in files:
                if not work.passes(file):
                    sys.exit(f"{file}: its tests fail without a change")
                results += judged(work, file, args.sample, args.seed)
                if args.keep:
                    args.keep.write_text(json.dumps(results, indent=1) + "\n")
    print(table(results))


if __name__ == "__main__":
    main()
