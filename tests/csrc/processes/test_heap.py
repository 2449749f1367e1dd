"""Memory for tensors that peers can reach, taken by several threads, under ThreadSanitizer."""

from pathlib import Path

import pytest
from builds import CSRC, Build, mutated, needs_compiler, run

FILE = "processes/heap.cpp"
PIN = "void Heap::pin() {\n  "
LOCK = "const std::lock_guard lock(mutex_);\n"

pytestmark = [needs_compiler, pytest.mark.sweep("sanitizers")]


def built(folder: Path, csrc: Path = CSRC) -> Path:
    build = Build("thread", folder, csrc)
    sources = [
        Path(__file__).with_name("heap_test.cpp"),
        csrc / FILE,
        csrc / "processes/memory.cpp",
    ]
    return build.link([build.compile(source) for source in sources], folder, "torch_cpu")


@pytest.mark.parametrize("lock", [True, False], ids=["", "control"])
def test_memory_is_pinned_while_another_thread_takes_some(lock, tmp_path):
    csrc = CSRC if lock else mutated(tmp_path, FILE, PIN + LOCK, PIN)
    done = run(built(tmp_path, csrc))
    assert (done.returncode == 0) == lock, done.stderr
    assert lock or "ThreadSanitizer: data race" in done.stderr
