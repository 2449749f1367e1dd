"""The Python half of mutation.py: a copy of the repository, in which the tests of a file run."""

from __future__ import annotations

import ast
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from mutated_files import PYTHON

ROOT = Path(__file__).resolve().parents[1]
# A mutant that runs so long hangs: unchanged, the tests of a file take at most a third.
LIMIT_S = 200


class Workspace:
    """A copy of the repository, with the extension as it was built."""

    tests = PYTHON

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
        return in_a_fork(_tests_pass, self.folder, self.tests[file])


def in_a_fork(function: Callable[..., bool], *arguments: object) -> bool:
    """What a function says in a process of its own, which imports what has changed; torch has been
    imported before. One that dies or hangs has said no."""
    process = multiprocessing.get_context("fork").Process(target=_tell, args=(function, *arguments))
    process.start()
    process.join(LIMIT_S)
    if process.is_alive():
        os.killpg(process.pid, signal.SIGKILL)  # with those that it has started
        process.join()
    return process.exitcode == 0


def _tell(function: Callable[..., bool], *arguments: object) -> None:
    os.setsid()
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)
    os.dup2(quiet, 2)
    os._exit(0 if function(*arguments) else 1)


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


def _tests_pass(folder: Path, tests: tuple[str, ...]) -> bool:
    os.chdir(folder)
    sys.path.insert(0, str(folder))
    import pytest

    options = ["-x", "-q", "-o", "addopts=", "-p", "no:cacheprovider", "--hypothesis-seed=0"]
    return pytest.main([*options, *(f"tests/{test}" for test in tests)]) == 0
