"""The virtual CUDA runtime's own tests: plain, and under each sanitizer that it has to serve."""

from pathlib import Path

import pytest
from builds import FOR_VIRTUAL_CUDA, VIRTUAL_CUDA, Build, needs_compiler, run

SOURCES = [VIRTUAL_CUDA / "all.cpp", *sorted(VIRTUAL_CUDA.glob("selftest*.cpp"))]
# What must make a process fail, by build: its name, the exit status and the words on stderr.
CONTROLS = {
    "plain": ("control_violation_left_behind", 97, "violation: not visible to a device"),
    "thread": ("control_race", 66, "ThreadSanitizer: data race"),
    "address": ("control_overrun", 1, "AddressSanitizer: use-after-poison"),
}

pytestmark = needs_compiler


@pytest.mark.parametrize(
    "sanitizer",
    [
        pytest.param(x, marks=pytest.mark.sweep("virtual GPUs" if x == "plain" else "sanitizers"))
        for x in CONTROLS
    ],
)
def test_selftests_and_their_control(sanitizer: str, object_files: Path, tmp_path: Path) -> None:
    build = Build(sanitizer, object_files)
    objects = [build.compile(source, *FOR_VIRTUAL_CUDA) for source in SOURCES]
    selftest = build.link(objects, tmp_path)
    done = run(selftest)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "sixteen_devices" in done.stdout
    control, status, words = CONTROLS[sanitizer]
    done = run(selftest, control)
    assert (done.returncode, words in done.stdout + done.stderr) == (status, True)
