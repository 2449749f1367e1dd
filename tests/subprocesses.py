"""Scripts in an interpreter of their own: for what a process decides once, or dies of."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path


def run_python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    callers = filter(None, [os.environ.get("PYTHONPATH")])
    here = Path(__file__).parent
    path = os.pathsep.join([str(here), str(here.parent / "benchmarks"), *callers])
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env={**os.environ, "PYTHONPATH": path, **environment},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def output_of(code: str, **environment: str) -> str:
    done = run_python(code, **environment)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()
