"""What two ranks tell each other of their sends and receives, with threads as ranks, and mutants of
it that must not get through."""

from pathlib import Path

import pytest
from builds import CSRC, Build, mutated, needs_compiler, run

HERE = Path(__file__).parent
FILE = "processes/labels.cpp"
OTHERS = [
    HERE / "labels_test.cpp",
    HERE / "one_process_memory.cpp",
    *(CSRC / f"processes/{name}.cpp" for name in ("group", "invitations", "failures", "bell")),
]

pytestmark = [needs_compiler, pytest.mark.sweep("sanitizers")]


def built(
    folder: Path, csrc: Path = CSRC, sanitizer: str = "plain", objects: Path | None = None
) -> Path:
    others = [Build(sanitizer, objects or folder).compile(x) for x in OTHERS]
    build = Build(sanitizer, folder, csrc)
    return build.link([*others, build.compile(csrc / FILE)], folder)


@pytest.mark.parametrize("sanitizer", ["address", "thread"])
def test_gloo_never_has_two_calls_that_differ(sanitizer, object_files, tmp_path):
    done = run(built(tmp_path, sanitizer=sanitizer, objects=object_files), "10000")
    assert (done.returncode, done.stdout, done.stderr) == (0, "17 cases right\n", "")


# What is wrong: the text, the text in its place, and what the test then says.
WRITE = "  slot(me, call.sends, peer, call.tag, number).write(mine);\n"
LOOK = (
    "  const std::optional<Label> theirs = slot(peer, !call.sends, me, call.tag, number).read();\n"
)
BOTH = "two calls that do not fit were both given to Gloo"
TORN = "a label was read that nobody has written"
MUTANTS = {
    "looks first": (WRITE + LOOK, LOOK + WRITE, BOTH),
    "looks before its label is seen": (
        "version + 2, std::memory_order_seq_cst",
        "version + 2, std::memory_order_release",
        BOTH,
    ),
    "reads what is overwritten meanwhile": (
        " && version == version_.load(std::memory_order_relaxed)",
        "",
        TORN,
    ),
    "overwrites in secret": ("  version_.store(version + 1, std::memory_order_relaxed);\n", "", ""),
    "the number stays": ("  ++number;\n", "", "more wait than are kept: "),
    "compares what any rank may have sent": (
        "  if (call.any_rank) unordered_.insert(call.tag);\n",
        "",
        "after one of any rank: ",
    ),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_mutants_are_found(name, object_files, tmp_path):
    """Those that are a matter of time, as is what shows first, are given some."""
    text, other, words = MUTANTS[name]
    csrc = mutated(tmp_path, FILE, text, other)
    program = built(tmp_path, csrc, objects=object_files)
    runs = (run(program, "100000") for _ in range(50))
    assert any(done.returncode and words in done.stderr for done in runs)
