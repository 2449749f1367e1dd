"""The thread that wakes those who wait in Gloo in vain, under sanitizers, and mutants of it."""

from pathlib import Path

import pytest
from builds import CSRC, Build, mutated, needs_compiler, run

TEST = Path(__file__).parent / "watch_test.cpp"
WATCH = "processes/watch.cpp"

pytestmark = [needs_compiler, pytest.mark.sweep("sanitizers")]


@pytest.mark.parametrize("sanitizer", ["address", "thread"])
def test_who_is_woken(sanitizer, object_files, tmp_path):
    build = Build(sanitizer, object_files)
    done = run(build.link([build.compile(TEST), build.compile(CSRC / WATCH)], tmp_path))
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
    "looks for who has gone": ("  watch_.waiters_.erase(this);\n", "", "ThreadSanitizer"),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_mutants_are_found(name, object_files, tmp_path):
    text, other, words = MUTANTS[name]
    csrc = mutated(tmp_path, WATCH, text, other)
    test = Build("thread", object_files).compile(TEST)
    mutant = Build("thread", tmp_path, csrc).compile(csrc / WATCH)
    done = run(Build("thread", tmp_path).link([test, mutant], tmp_path))
    assert done.returncode != 0 and words in done.stderr
