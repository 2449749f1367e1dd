"""The Python half of mutation.py: a copy of the repository, and which tests a file has."""

from __future__ import annotations

import ast
import multiprocessing
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# A mutant that runs so long hangs: unchanged, the tests of a file take about a tenth.
LIMIT_S = 400

# By source, the tests that belong to it, those that find most first.
TESTS = {
    "fastreduce/program.py": ("test_rank_order.py", "test_program.py", "test_proof.py"),
    "fastreduce/collectives.py": ("collectives",),
    "fastreduce/plan/build.py": ("plan/test_build.py", "collectives/test_lists.py"),
    "fastreduce/plan/candidates.py": ("plan/test_explain.py",),
    "fastreduce/plan/choose.py": ("plan/test_choose.py", "plan/test_build.py"),
    "fastreduce/plan/table.py": ("plan/test_table.py", "plan/test_table_files.py"),
}


class Workspace:
    """A copy of the repository, with the extension as it was built."""

    tests = TESTS

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in ("csrc", "fastreduce", "tests", "benchmarks", "docs", "pyproject.toml"):
            copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy2
            copy(ROOT / name, folder / name)

    def prepare(self) -> None:
        """What is done once, before any change."""

    def change(self, file: str, text: str) -> bool:
        """Whether it is a mutant: a change that an interpreter or a compiler takes."""
        (self.folder / file).write_text(text)
        return tree_of(text) not in (None, tree_of((ROOT / file).read_text()))

    def restore(self, file: str) -> None:
        self.change(file, (ROOT / file).read_text())

    def passes(self, file: str) -> bool:
        """A process that dies or hangs has not passed. torch is imported before the fork, once."""
        fork = multiprocessing.get_context("fork")
        process = fork.Process(target=_run_tests, args=(self.folder, self.tests[file]))
        process.start()
        process.join(LIMIT_S)
        if process.is_alive():
            process.kill()
            process.join()
        return process.exitcode == 0


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
