"""The thread that wakes those who wait in Gloo in vain, under sanitizers, and mutants of it."""

import re
from pathlib import Path

import pytest
from builds import CSRC, Build, mutated, needs_compiler, run

TEST = Path(__file__).parent / "watch_test.cpp"
FILE = "processes/watch.cpp"

pytestmark = [needs_compiler, pytest.mark.sweep("sanitizers")]


def built(folder: Path, csrc: Path = CSRC, sanitizer: str = "thread") -> Path:
    build = Build(sanitizer, folder, csrc)
    return build.link([build.compile(TEST), build.compile(csrc / FILE)], folder)


@pytest.mark.parametrize("sanitizer", ["address", "thread"])
def test_who_is_woken(sanitizer, tmp_path):
    done = run(built(tmp_path, sanitizer=sanitizer))
    assert (done.returncode, done.stdout, done.stderr) == (0, "5 cases right\n", "")


# What is wrong: the text, the text in its place, and what is then said.
MUTANTS = {
    "sleeps on": ("  watch_.sleeps_ = false;\n", "", "a wait in vain went on"),
    "wakes once": (
        "      if (waiter->trouble_.empty()) waiter->trouble_ = waiter->look_();\n",
        "      if (!waiter->trouble_.empty()) continue;\n"
        "      waiter->trouble_ = waiter->look_();\n",
        "",
    ),
    # A race, unless what has gone has been overwritten before.
    "looks for who has gone": (
        "  watch_.waiters_.erase(this);\n",
        "",
        "ThreadSanitizer|bad_function_call",
    ),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_mutants_are_found(name, tmp_path):
    text, other, words = MUTANTS[name]
    done = run(built(tmp_path, mutated(tmp_path, FILE, text, other)))
    assert done.returncode != 0 and re.search(words, done.stderr)
