"""The engine under AddressSanitizer, UBSan and ThreadSanitizer (cpp/engine_test.cpp), and mutants
of it that must not get through."""

from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

import pytest
from builds import CSRC, Build, mutated, needs_compiler, run

HERE = Path(__file__).parent
ENGINE = ("cpu/tiles.cpp", "cpu/kernels.cpp")
KERNELS = "few_kernels.cpp"
# Where g++ expands a memcpy in line, ThreadSanitizer does not see it.
SEEN = "-fno-builtin-memcpy"
# Undefined behaviour is looked for in the engine; in the test that takes long to compile.
PARTS = {
    "engine_test.cpp": (HERE / "engine_test.cpp", "-fno-sanitize=undefined"),
    KERNELS: (HERE / KERNELS, SEEN),
    **{name: (CSRC / name, SEEN) for name in ENGINE},
}
SANITIZED = ("address", "thread")

pytestmark = [needs_compiler, pytest.mark.sweep("sanitizers")]


@pytest.fixture(scope="module")
def objects(object_files):
    """By sanitizer and source, of the unchanged sources: mutants are linked with most of them."""

    def compile_all(sanitizer):
        build = Build(sanitizer, object_files)
        with ThreadPoolExecutor(2) as workers:
            made = workers.map(lambda options: build.compile(*options), PARTS.values())
            return dict(zip(PARTS, made, strict=True))

    return cache(compile_all)


@pytest.mark.parametrize("sanitizer", SANITIZED)
def test_engine(sanitizer, objects, tmp_path):
    parts = objects(sanitizer)
    # Threads meet in the same places whatever the type of the elements.
    fewest = ["fewest"] if sanitizer == "thread" else []
    done = run(Build(sanitizer, tmp_path).link([*parts.values()], tmp_path), *fewest)
    assert (done.returncode, done.stderr) == (0, "")
    count, rest = done.stdout.split(" ", 1)
    assert int(count) > (500 if fewest else 2000) and rest == "cases right\n"


# What is wrong: the file, its text, the text in its place, who finds it, what is said of it.
MUTANTS = {
    "one source too few": (
        *(
            "cpu/tiles.cpp",
            "(instruction.srcs.size())",
            "(std::max<size_t>(instruction.srcs.size(), 2) - 1)",
        ),
        *("address", "wrong value"),
    ),
    "one destination too few": (
        *(
            "cpu/tiles.cpp",
            "(instruction.dsts.size())",
            "(std::max<size_t>(instruction.dsts.size(), 2) - 1)",
        ),
        *("address", "wrong value"),
    ),
    "order of sources swapped": (
        *("cpu/tiles.cpp", "instruction.srcs[s]", "instruction.srcs[num_srcs - 1 - s]"),
        *("address", "leader, 3 ranks, 1 elements, offset 0: wrong value"),
    ),
    "one element too few": (
        *("cpu/tiles.cpp", "row.elems - at)", "row.elems - at - 1)"),
        *("address", "wrong value"),
    ),
    "one element too far": (
        *("cpu/tiles.cpp", "row.elems - at)", "row.elems - at + 1)"),
        *("address", "heap-buffer-overflow"),
    ),
    "one element too far, without a sanitizer's help": (
        *("cpu/tiles.cpp", "row.elems - at)", "row.elems - at + 1)"),
        *("thread", "bytes changed around a buffer"),
    ),
    "one element too far in the kernel": (
        *("cpu/reduce_range.h", "for (; at < elems; ++at)", "for (; at <= elems; ++at)"),
        *("address", "heap-buffer-overflow"),
    ),
    "overflow of signed integers": (
        *(
            "ops.h",
            "uint32_t, Unsigned<A>>;",
            "uint32_t, std::conditional_t<std::is_same_v<A, uint32_t>, int32_t, Unsigned<A>>>;",
        ),
        *("address", "signed integer overflow"),
    ),
    "two threads in one tile": (
        *(
            "cpu/tiles.cpp",
            "tiles.run(begin, end); }",
            "tiles.run(begin, std::min(end + 1, count)); }",
        ),
        *("thread", "ThreadSanitizer: data race"),
    ),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_mutants_are_found(name, objects, tmp_path):
    file, text, other, sanitizer, words = MUTANTS[name]
    csrc = mutated(tmp_path, file, text, other)
    build = Build(sanitizer, tmp_path, csrc)
    parts = {**objects(sanitizer)}
    if file in ENGINE:
        parts[file] = build.compile(csrc / file, SEEN)
    else:
        parts[KERNELS] = build.compile(HERE / KERNELS, SEEN, "-DFEWEST_KERNELS")
    done = run(build.link([*parts.values()], tmp_path), "fewest kernels")
    assert done.returncode != 0
    assert words in done.stdout + done.stderr
