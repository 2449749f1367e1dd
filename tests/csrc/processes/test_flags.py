"""The engine for processes, with threads as ranks, under ThreadSanitizer and AddressSanitizer, and
mutants of it that must not get through."""

from functools import cache
from pathlib import Path

import pytest
from builds import CSRC, Build, mutated, needs_compiler, run
from program_files import programs_of_processes, some, write_programs

HERE = Path(__file__).parent
ENGINE = [
    f"processes/{name}.cpp"
    for name in ("flags", "group", "invitations", "failures", "rank_schedule", "bell")
]
# Where g++ expands a memcpy in line, ThreadSanitizer does not see it.
SEEN = "-fno-builtin-memcpy"
PARTS = {
    "test": (HERE / "flags_test.cpp", "-fno-sanitize=undefined"),
    "failures": (HERE / "failures_test.cpp",),
    "bell": (HERE / "bell_test.cpp",),
    "fingerprint": (HERE / "fingerprint_test.cpp",),
    "rank_schedule": (HERE / "rank_schedule_test.cpp", "-fno-sanitize=undefined"),
    "memory": (HERE / "one_process_memory.cpp",),
    "kernels": (HERE.parent / "cpu" / "few_kernels.cpp", SEEN, "-DFEWEST_KERNELS"),
    "choice of kernels": (CSRC / "cpu" / "kernels.cpp",),
    **{name: (CSRC / name, SEEN) for name in ENGINE},
}
PROGRAMS = [
    name for name in PARTS if name not in ("failures", "bell", "fingerprint", "rank_schedule")
]
FAILURES = (
    "failures",
    "memory",
    *(f"processes/{name}.cpp" for name in ("group", "invitations", "failures", "bell")),
)
BELL = ("bell", "processes/bell.cpp")
RANK_SCHEDULE = ("rank_schedule", "processes/rank_schedule.cpp")

pytestmark = [needs_compiler, pytest.mark.sweep("sanitizers")]


@pytest.fixture(scope="module")
def objects(object_files):
    def compile_all(sanitizer):
        build = Build(sanitizer, object_files)
        return {name: build.compile(*options) for name, options in PARTS.items()}

    return cache(compile_all)


@pytest.fixture(scope="module")
def programs(tmp_path_factory):
    path = tmp_path_factory.mktemp("programs") / "programs.txt"
    return write_programs(path, [*programs_of_processes()])


# Of the programs: the object files, how many are right at least, and of what.
OF_PROGRAMS = {
    "what it leaves": (PROGRAMS, 70, "cases right\n"),
    "what a rank does": (RANK_SCHEDULE, 60, "programs right\n"),
}


@pytest.mark.parametrize("sanitizer", ["address", "thread"])
@pytest.mark.parametrize("what", OF_PROGRAMS)
def test_programs(what, sanitizer, objects, tmp_path):
    programs = write_programs(tmp_path / "programs.txt", some(programs_of_processes()))
    names, least, words = OF_PROGRAMS[what]
    parts = [objects(sanitizer)[name] for name in names]
    done = run(Build(sanitizer, tmp_path).link(parts, tmp_path), programs)
    assert (done.returncode, done.stderr) == (0, "")
    count, rest = done.stdout.split(" ", 1)
    assert int(count) > least and rest == words


PARTS_ALONE = {
    "which calls a failure reaches": (FAILURES, 12),
    "whom a bell wakes": (BELL, 4),
    "what has one fingerprint": (["fingerprint"], 2),
}


@pytest.mark.parametrize("sanitizer", ["address", "thread"])
@pytest.mark.parametrize("what", PARTS_ALONE)
def test_parts_alone(what, sanitizer, objects, tmp_path):
    names, count = PARTS_ALONE[what]
    parts = [objects(sanitizer)[name] for name in names]
    done = run(Build(sanitizer, tmp_path).link(parts, tmp_path))
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{count} cases right\n", "")


# What is wrong, by file: its text, the text in its place, and what the test then says. In
# rank_schedule.cpp results would be right, but there are needless waits and copies.
WRONG = {
    "bell": [
        ("FUTEX_WAKE, INT_MAX", "FUTEX_WAKE, 1", "was rung, and a sleeper slept on"),
        ("rings.fetch_add(1,", "rings.fetch_add(0,", "at the last look, and a sleeper slept on"),
        ("most.count() / 1000, most", "0, most", "the sleep was too short"),
    ],
    "rank_schedule": [
        ("if (owner(buffer) != rank) continue;", "", "for those that touch its memory, waits"),
        ("      return;\n", "", "waits for something else"),
        (" && !seen.count(x.shard)", "", "copies other shards"),
    ],
}


@pytest.mark.parametrize(
    ("part", "text", "other", "words"), [(part, *x) for part in WRONG for x in WRONG[part]]
)
def test_control_wrong_parts_are_found(part, text, other, words, object_files, programs, tmp_path):
    file = f"processes/{part}.cpp"
    csrc = mutated(tmp_path, file, text, other)
    build = Build("plain", tmp_path, csrc)
    test = Build("plain", object_files).compile(*PARTS[part])
    done = run(build.link([test, build.compile(csrc / file)], tmp_path), programs)
    assert done.returncode == 1
    assert words in done.stderr


def test_control_a_weak_fingerprint_is_found(tmp_path):
    mixed = "value_ = mixed(value_ ^ static_cast<uint64_t>(numbers))"
    added = "value_ ^= static_cast<uint64_t>(numbers) + 0x9e3779b9 + (value_ << 6) + (value_ >> 2)"
    csrc = mutated(tmp_path, "fingerprint.h", mixed, added)  # as c10::hash_combine does
    build = Build("plain", tmp_path, csrc)
    done = run(build.link([build.compile(*PARTS["fingerprint"])], tmp_path))
    assert (done.returncode, done.stderr) == (1, "FAILED: two have one fingerprint\n")


# What is wrong in failures.cpp, as above.
CARELESS = [
    (
        "front(peer).failed_since <= round)",
        "front(peer).failed_since <= round + 1)",
        "it fails in the next call, the call that all have arrived at: raised",
    ),
    (
        " || !has_arrived(peer)))\n      if",
        "))\n      if",
        "one will not come, another is waited for: raised",
    ),
    ("  if (last) advance_done(1);\n", "", "one leaves when the last step is done: raised"),
    ("!last || ", "(last && !last) || ", "one leaves before the last step: raised ''"),
    (
        '    chain += ", which waits for rank " + names_[peer];\n',
        "",
        "one waits for another: raised",
    ),
]


@pytest.mark.parametrize(("text", "other", "words"), CARELESS)
def test_careless_failures_are_found(text, other, words, objects, tmp_path):
    """The control."""
    file = "processes/failures.cpp"
    csrc = mutated(tmp_path, file, text, other)
    build = Build("thread", tmp_path, csrc)
    parts = {**objects("thread"), file: build.compile(csrc / file, SEEN)}
    done = run(build.link([parts[name] for name in FAILURES], tmp_path))
    assert done.returncode == 1
    assert words in done.stderr


# What is wrong: the file, its text, the text in its place.
MUTANTS = {
    "nobody waits for what peers copy in": (
        "processes/flags.cpp",
        "for (int peer : step.copied) group_.wait_copied(peer, slice + 1);",
        "",
    ),
    "nobody waits for earlier instructions of peers": (
        "processes/flags.cpp",
        "    wait_for(step.done, slice);\n",
        "",
    ),
    "a slice is published before it is copied in": (
        "processes/flags.cpp",
        "    for (int shard : rank_schedule_.copy_in)",
        "    group_.advance_copied(slice + 1);\n    for (int shard : rank_schedule_.copy_in)",
    ),
    "a slice is published before the device has copied it in": (
        "processes/flags.cpp",
        "    finish();\n    group_.advance_copied(slice + 1);",
        "    group_.advance_copied(slice + 1);",
    ),
    "an instruction is published before the device has executed it": (
        "processes/flags.cpp",
        "    finish();\n    group_.advance_done(",
        "    group_.advance_done(",
    ),
    "a call returns before its device is done": (
        "processes/flags.cpp",
        "    finish();\n    if (own_memory",
        "    if (own_memory",
    ),
    "a device's memory is used again while a peer is at it": (
        "processes/flags.cpp",
        "if (own_memory && slices_.count > 0)",
        "if (own_memory && false)",
    ),
    "a device copies a slice out and the next one in at once": (
        "processes/flags.cpp",
        "      });\n    executor_.flush();\n  }\n\n  void finish",
        "      });\n  }\n\n  void finish",
    ),
    "an instruction is published before it is executed": (
        "processes/flags.cpp",
        "    wait_for(step.done, slice);\n",
        "    wait_for(step.done, slice);\n"
        "    group_.advance_done(slice * rank_schedule_.steps.size() + number + 1);\n",
    ),
    "a slot is used again one slice too early": (
        "processes/flags.cpp",
        "if (slice >= kSlots) wait_for(rank_schedule_.touched, slice - kSlots);",
        "if (slice > kSlots) wait_for(rank_schedule_.touched, slice - kSlots - 1);",
    ),
    "a slice is copied out before peers have reduced it": (
        "processes/flags.cpp",
        "    wait_for(rank_schedule_.written, slice);\n",
        "",
    ),
    "a rank returns while peers work on its tensor": (
        "processes/flags.cpp",
        "    wait_for(rank_schedule_.touched, 0);\n",
        "",
    ),
    "a rank returns what it has read of one that gave up": (
        "processes/flags.cpp",
        "    group_.check_peers();\n",
        "",
    ),
    "one desk for all rounds": ("processes/group.cpp", "desks[round_ % 2]; }", "desks[0]; }"),
    "one staging area for all rounds": (
        "processes/group.cpp",
        "round_ % 2 * staging_bytes_",
        "0 * staging_bytes_",
    ),
    "nobody waits for the last to arrive": (
        "processes/group.cpp",
        "for (int peer = 0; peer < size(); ++peer)\n    if (peer != rank_) wait(",
        "for (int peer = 0; peer < size() - 1; ++peer)\n    if (peer != rank_) wait(",
    ),
    "counters order nothing": (
        "processes/group.cpp",
        "counter.store(value, std::memory_order_seq_cst);",
        "counter.store(value, std::memory_order_relaxed);",
    ),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_mutants_are_found(name, objects, programs, tmp_path):
    file, text, other = MUTANTS[name]
    csrc = mutated(tmp_path, file, text, other)
    build = Build("thread", tmp_path, csrc)
    parts = {**objects("thread"), file: build.compile(csrc / file, SEEN)}
    done = run(build.link([parts[name] for name in PROGRAMS], tmp_path), programs)
    assert done.returncode != 0
    signs = ("wrong value", "ThreadSanitizer: data race", "reached its timeout", "one gives up")
    assert any(sign in done.stderr for sign in signs), done.stderr
