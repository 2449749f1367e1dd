"""Building with a compiler that cannot: it ends at once, and says which one is wanted."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

COMPILERS = {
    "clang": ("echo '#define __GNUC__ 4'; echo '#define __clang__ 1'", "is clang"),
    "an old g++": ("echo '#define __GNUC__ 11'", "is 11"),
    "one that fails": ("exit 3", "cannot be run"),
    "control: a new g++": ("echo '#define __GNUC__ 12'", None),
}


@pytest.mark.parametrize("name", COMPILERS)
def test_the_compiler_is_looked_at_first(name, tmp_path):
    script, words = COMPILERS[name]
    compiler = tmp_path / "compiler"
    compiler.write_text(f"#!/bin/sh\n{script}\n")
    compiler.chmod(0o755)
    built = _build(tmp_path, str(compiler))
    refused = "fastreduce: the C++ compiler"
    if words is None:
        assert refused not in built.stderr
    else:
        assert built.returncode == 1
        assert built.stderr.splitlines()[-1].startswith(f"{refused} '{compiler}' {words}")
        assert built.stderr.endswith("wanted g++ 12 or later; set CXX to its name\n")


def test_without_a_compiler_it_says_so(tmp_path):
    assert "'/no/compiler' cannot be run" in _build(tmp_path, "/no/compiler").stderr


def _build(folder, compiler):
    code = [sys.executable, "setup.py", "build_ext", "-b", str(folder), "-t", str(folder)]
    env = os.environ | {"CXX": compiler, "FASTREDUCE_CUDA": "0"}
    return subprocess.run(code, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
