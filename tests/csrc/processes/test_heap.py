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


def test_memory_is_pinned_while_another_thread_takes_some(tmp_path):
    done = run(built(tmp_path))
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("text", "other", "words"),
    [
        (PIN + LOCK, PIN, "ThreadSanitizer: data race"),
        ("if (pinned_) return;  // GPUs have it mapped", "", "given back"),
    ],
)
def test_mutants_are_found(text, other, words, tmp_path):
    done = run(built(tmp_path, mutated(tmp_path, FILE, text, other)))
    assert done.returncode != 0
    assert words in done.stderr
