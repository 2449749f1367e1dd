"""Memory that several processes see, on a kernel that lets signals end the call which takes it."""

from pathlib import Path

import pytest
from builds import CSRC, Build, mutated, needs_compiler, run

FILE = "processes/memory.cpp"

pytestmark = [needs_compiler, pytest.mark.sweep("sanitizers")]

# What is wrong in memory.cpp: the text that is taken out, and what the test then says.
INTERRUPTED = {
    "": "",
    "  pthread_sigmask(SIG_SETMASK, &every, &before);\n": "Interrupted system call",
    "  pthread_sigmask(SIG_SETMASK, &before, nullptr);\n": "signals stay blocked",
}


@pytest.mark.parametrize("text", INTERRUPTED)
def test_signals_wait_until_memory_is_taken(text, tmp_path):
    """With the controls."""
    csrc = mutated(tmp_path, FILE, text, "") if text else CSRC
    build = Build("plain", tmp_path, csrc)
    test = build.compile(Path(__file__).with_name("memory_test.cpp"))
    done = run(build.link([test, build.compile(csrc / FILE)], tmp_path))
    assert done.returncode == (1 if text else 0)
    assert INTERRUPTED[text] in done.stderr
