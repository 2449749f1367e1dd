"""Scripts in an interpreter of their own: for what a process decides once, or dies of."""

import os
import subprocess
import sys
import textwrap


def run_python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """What this process can import, that one can too."""
    path = os.pathsep.join(filter(None, sys.path))
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
