"""The virtual CUDA runtime's own tests: plain, and under each sanitizer that it has to serve."""

import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).parent
SOURCES = ["all.cpp", *sorted(path.name for path in HERE.glob("selftest*.cpp"))]
SANITIZERS = {
    "plain": [],
    "thread": ["-fsanitize=thread"],
    "address": ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"],
}
# What must make a process fail, by build: its name, the exit status and the words on stderr.
CONTROLS = {
    "plain": ("control_violation_left_behind", 97, "violation: not visible to a device"),
    "thread": ("control_race", 66, "ThreadSanitizer: data race"),
    "address": ("control_overrun", 1, "AddressSanitizer: use-after-poison"),
}


def run(*command: str | Path, status: int = 0) -> str:
    done = subprocess.run(command, cwd=HERE, capture_output=True, text=True, timeout=300)
    output = done.stdout + done.stderr
    assert done.returncode == status, output
    return output


@pytest.mark.parametrize("build", SANITIZERS)
def test_selftests_and_their_control(build: str, tmp_path: Path) -> None:
    flags = ["-std=c++20", "-O1", "-g1", "-Wall", "-Wextra", "-Werror", "-I.", *SANITIZERS[build]]
    program = tmp_path / "selftest"
    run("g++", *flags, *SOURCES, "-pthread", "-o", program)
    assert "sixteen_devices" in run(program)
    control, status, words = CONTROLS[build]
    assert words in run(program, control, status=status)
