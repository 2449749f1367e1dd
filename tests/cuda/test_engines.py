"""The CUDA engines on the virtual CUDA runtime (tests/virtual_cuda), and mutants of them that must
not get through."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from builds import CSRC, Build, mutated, needs_compiler, run

HERE = Path(__file__).parent
VIRTUAL = HERE.parent / "virtual_cuda"
OPTIONS = (f"-I{VIRTUAL}", "-Wno-unknown-pragmas")
TESTS = {
    x: HERE / x
    for x in ("engines_test.cpp", "peers_test.cpp", "few_kernels.cpp", "virtual_launch.cpp")
}
ENGINES = {
    x: CSRC / x
    for x in ("tiles_cuda.cu", "events.cu", "enqueue.cu", "lanes.cu", "peers.cu", "proofs.cu")
}
SOURCES = {"all.cpp": VIRTUAL / "all.cpp", **TESTS, **ENGINES}

pytestmark = needs_compiler


@pytest.fixture(scope="module")
def objects(tmp_path_factory):
    """By sanitizer and source, of the unchanged sources: mutants are linked with most of them."""
    builds = {x: Build(x, tmp_path_factory.mktemp(x)) for x in ("plain", "thread", "address")}
    with ThreadPoolExecutor(2) as workers:
        made = {
            (sanitizer, name): workers.submit(build.compile, source, *OPTIONS)
            for sanitizer, build in builds.items()
            for name, source in SOURCES.items()
        }
    return {key: future.result() for key, future in made.items()}


@pytest.fixture(scope="module")
def programs(objects, tmp_path_factory):
    return {
        sanitizer: Build(sanitizer, tmp_path_factory.mktemp(f"{sanitizer}_program")).link(
            [objects[sanitizer, name] for name in SOURCES]
        )
        for sanitizer in ("plain", "thread", "address")
    }


# The machine or the question, the sanitizer, and how many cases at least.
MODES = {
    # With every write looked for that a kernel did not declare.
    "orders": ("plain", "1", 250),
    # 36 cases, each in 280 random legal orders.
    "many orders": ("plain", "280", 10_000),
    "threads": ("thread", "1", 200),
    "capture": ("address", "1", 8),
    "failures": ("address", "1", 600),
    "no peers": ("address", "1", 18),
    "no peers, threads": ("thread", "1", 9),
    "few peers": ("plain", "1", 9),
    "pairs of peers": ("plain", "1", 9),
    "lost writes": ("plain", "1", 9),
    "wrong reads": ("plain", "1", 9),
    "lost copies": ("plain", "1", 9),
}


@pytest.mark.parametrize("mode", MODES)
def test_engines(mode, programs):
    sanitizer, seeds, least = MODES[mode]
    done = run(programs[sanitizer], mode, seeds)
    assert done.returncode == 0, done.stderr
    count, rest = done.stdout.split(" ", 1)
    assert int(count) >= least and rest == "cases right\n"


@pytest.mark.parametrize("mode", ["kept proofs", "kept failures"])
def test_proofs_are_kept_for_later_processes(mode, programs, tmp_path):
    done = run(programs["address"], mode, str(tmp_path / "proofs"))
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{5 if mode == 'kept proofs' else 2} cases right\n"


def test_lost_peer_access_is_warned_of_once(programs):
    warnings = run(programs["plain"], "lost writes").stderr.splitlines()
    assert len(warnings) == 1
    assert "device 0 cannot use the memory of device 1 directly" in warnings[0]
    assert "a kernel's writes do not arrive" in warnings[0]


# What is wrong: the file, its text, the text in its place, the mode, what is said of it.
MUTANTS = {
    "one wait dropped": (
        *(
            "enqueue.cu",
            "if (known_[lane][other] >= behind[other]) continue;",
            "if (true) continue;",
        ),
        *("orders", "unordered"),
    ),
    "lanes do not wait for torch's streams": (
        *("events.cu", "    wait(call.hub().stream.get(), ready.get());", "    (void)ready;"),
        *("orders", ""),
    ),
    "torch's streams do not wait for the lanes": (
        *(
            "events.cu",
            "for (const Current& current : call.currents) wait(current.stream,",
            "if (call.slices > 9) wait(call.currents[0].stream,",
        ),
        *("orders", ""),
    ),
    "one lane is not joined": (
        *("events.cu", "    wait(call.hub().stream.get(), lane->joined.get());", ""),
        *("orders", ""),
    ),
    "one wrong source": (
        *(
            "launch.cu",
            "for (int buffer : *buffers) args_",
            "for (int buffer : *buffers) buffer ^= 1, args_",
        ),
        *("orders", ""),
    ),
    "one element too far": (
        *("reduce_rows.cuh", ": Range{tail, end};", ": Range{tail, end + 1};"),
        *("orders", ""),
    ),
    "one peer not enabled": (
        *(
            "peers.cu",
            "= cudaDeviceEnablePeerAccess(other, 0);",
            "= other == 1 ? cudaSuccess : cudaDeviceEnablePeerAccess(other, 0);",
        ),
        *("orders", "peer"),
    ),
    "half a page of the host used too early": (
        *(
            "lanes.cu",
            "if (emptied_[half]) cuda_check",
            "if (false) cuda_check",
        ),
        *("no peers", "unordered"),
    ),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_mutants_are_found(name, objects, tmp_path):
    file, text, other, mode, words = MUTANTS[name]
    build = Build("plain", tmp_path, mutated(tmp_path, file, text, other))
    parts = {x: objects["plain", x] for x in SOURCES}
    changed = {"launch.cu": "virtual_launch.cpp", "reduce_rows.cuh": "few_kernels.cpp"}.get(
        file, file
    )
    source = TESTS.get(changed, build.csrc / changed)
    parts[changed] = build.compile(source, *OPTIONS)
    done = run(build.link([*parts.values()]), mode)
    assert done.returncode != 0
    assert words in done.stdout + done.stderr
