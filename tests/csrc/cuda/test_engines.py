"""The CUDA engines on the virtual CUDA runtime (tests/csrc/virtual_cuda)."""

from functools import cache

import pytest
from builds import Build, needs_compiler, run
from program_files import Named, every_program, some, text_of, write_programs
from virtual_builds import ENGINES_AND_TESTS, compile_all

from fastreduce import Instruction, Program
from fastreduce.algorithms.collectives import goal

SOURCES = ENGINES_AND_TESTS

# Compiling for the virtual runtime takes most of a minute.
pytestmark = [needs_compiler, pytest.mark.sweep("virtual GPUs")]


@pytest.fixture(scope="module")
def tests(objects_of, tmp_path_factory):
    def link(sanitizer):
        folder = tmp_path_factory.mktemp(sanitizer)
        return Build(sanitizer, folder).link([*objects_of(sanitizer).values()], folder)

    return cache(link)


# The machine or the question, the sanitizer, and how many cases at least.
MODES = {
    # With every write looked for that a kernel did not declare.
    "orders": ("plain", 150),
    # Each case in as many random legal orders as make so many in all.
    "many orders": ("plain", 10_000),
    "threads": ("thread", 150),
    "capture": ("address", 20),
    "failures": ("address", 3000),
    "interruptions": ("plain", 3000),
    "interruptions, no peers": ("plain", 1000),
    "flags": ("thread", 150),
    "graphs": ("address", 15),
    "graphs, no peers": ("address", 15),
    "failures, no peers": ("plain", 2000),
    "same addresses": ("address", 21),
    "beside": ("address", 9),
    "new threads": ("address", 6),
    "limits": ("address", 34),
    "limits, no peers": ("address", 1),
    "no peers": ("address", 50),
    "no peers, threads": ("thread", 50),
    "pieces": ("plain", 26),
    "pools": ("address", 20),
    "closed memory": ("address", 30),
    "copies": ("plain", 6),
    "kernels hang": ("plain", 2),
    "copies hang": ("plain", 2),
    "busy devices": ("plain", 5),
    "nvlinks": ("plain", 25),
    "nvlinks without NVML": ("plain", 25),
    "few peers": ("plain", 50),
    "pairs of peers": ("plain", 50),
    "lost writes": ("plain", 50),
    "wrong reads": ("plain", 50),
    "lost copies": ("plain", 50),
}


KINDS = {mode: "sanitizers" for mode, (sanitizer, _) in MODES.items() if sanitizer != "plain"}
KINDS["many orders"] = "random orders"


@pytest.mark.parametrize(
    "mode",
    [pytest.param(x, marks=pytest.mark.sweep(KINDS[x]) if x in KINDS else ()) for x in MODES],
)
def test_engines(mode, tests, programs, tmp_path):
    sanitizer, least = MODES[mode]
    if mode == "capture":  # one of the slowest
        programs = write_programs(tmp_path / "programs.txt", some(every_program()))
    done = run(tests(sanitizer), mode, programs, str(least))
    assert done.returncode == 0, done.stderr
    count, rest = done.stdout.split(" ", 1)
    assert int(count) >= least and rest == "cases right\n"


def for_cuda_12(source):
    """The oldest CUDA that the package is built with; there, arguments take at most 4 KB."""
    return source._replace(options=(*source.options, "-DCUDART_VERSION=12040"))


@pytest.fixture(scope="module")
def before_cuda_13(object_files, tmp_path_factory):
    old = {name: for_cuda_12(source) for name, source in SOURCES.items()}
    build = Build("plain", object_files)
    return build.link([*compile_all(build, old).values()], tmp_path_factory.mktemp("older"))


@pytest.mark.sweep("an older CUDA")
@pytest.mark.parametrize("mode", ["limits", "capture", "graphs", "orders"])
def test_engines_before_cuda_13(mode, before_cuda_13, programs):
    done = run(before_cuda_13, mode, programs, str(MODES[mode][1]))
    assert done.returncode == 0, done.stderr


@pytest.mark.sweep("an older CUDA")
def test_control_more_than_4_kb_of_arguments_are_refused(objects_of, programs, tmp_path):
    build = Build("plain", tmp_path)
    runtime = for_cuda_12(SOURCES["virtual runtime"]).compile(build)
    parts = {**objects_of("plain"), "virtual runtime": runtime}
    done = run(build.link([*parts.values()], tmp_path), "limits", programs, "1")
    assert done.returncode != 0
    assert "cudaErrorInvalidValue" in done.stderr


@pytest.mark.sweep("sanitizers")
@pytest.mark.parametrize(("mode", "count"), [("kept proofs", 13), ("kept failures", 2)])
def test_proofs_are_kept_for_later_processes(mode, count, tests, programs, tmp_path):
    done = run(tests("address"), mode, programs, tmp_path / "proofs")
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{count} cases right\n"


def test_lost_peer_access_is_warned_of_once(tests, programs):
    warnings = run(tests("plain"), "lost writes", programs).stderr.splitlines()
    assert len(warnings) == 1
    assert "device 0 cannot use the memory of device 1 directly" in warnings[0]
    assert "a kernel's writes do not arrive" in warnings[0]


@pytest.mark.parametrize(
    ("mode", "hang", "untried"), [("kernels hang", 2, 9), ("copies hang", 3, 15)]
)
def test_pairs_that_hang_are_warned_of(mode, hang, untried, tests, programs):
    """In two processes, once in each; the others of their devices without having been tried."""
    warnings = run(tests("plain"), mode, programs).stderr.splitlines()
    assert "a copy between them did not end within 2 s" in warnings[0]
    assert "device 0 cannot use the memory of device 1 directly" in warnings[0]
    assert sum("did not end" in warning for warning in warnings) == hang
    assert sum("to another device hangs" in warning for warning in warnings) == untried


@pytest.mark.parametrize("mode", ["nvlinks", "nvlinks without NVML"])
def test_missing_answers_of_nvml_are_warned_of_once(mode, tests, programs):
    warnings = [x for x in run(tests("plain"), mode, programs).stderr.splitlines() if "NVML" in x]
    assert len(warnings) == 1
    assert (
        mode != "nvlinks"
        or "nvmlDeviceGetHandleByPciBusId of 0000:3C:00.0: Not Found" in warnings[0]
    )


def test_closed_memory_is_warned_of_once(tests, programs):
    assert run(tests("plain"), "pools", programs).stderr == ""
    warnings = run(tests("plain"), "closed memory", programs).stderr.splitlines()
    assert len(warnings) == 1
    assert "has no access to a tensor's memory on device" in warnings[0]


def test_a_graph_that_cannot_be_made_is_warned_of_once(tests, programs):
    """Many cannot be made, of two kinds of call."""
    warnings = run(tests("plain"), "graphs", programs).stderr.splitlines()
    assert len(warnings) == 1
    assert "is not replayed as a CUDA graph" in warnings[0]
    assert "cudaGraphInstantiate failed: cudaErrorMemoryAllocation" in warnings[0]


def test_waits_and_launches_follow_from_what_is_read_and_written(tests, programs):
    """The engines believe the waits that the package derives; here they are worked out again."""
    done = run(tests("plain"), "waits", programs)
    assert done.stdout == f"{len(list(every_program()))} cases right\n", done.stderr


@pytest.fixture
def said_of(tests, tmp_path):
    def run_waits(*described):
        file = tmp_path / "programs.txt"
        file.write_text(text_of(*described))
        return run(tests("plain"), "waits", file).stderr

    return run_waits


RING = next(x for x in every_program() if x.name == "ring" and x.program.k == 3)


@pytest.mark.parametrize("later", [i for i, x in enumerate(RING.program.dependencies()) if x])
def test_control_waits_that_are_left_out_are_found(later, said_of):
    waits = RING.program.dependencies()
    waits[later] = ()
    assert f"ring, 3 ranks: instruction {later} does not wait for " in said_of(RING, waits)


@pytest.mark.parametrize(
    ("launches", "words"),
    [
        ([(0,), (2,), (1,)], "instruction 2 starts out of order"),
        ([(0, 1)], "instruction 1 starts with another rank's"),
        ([(i,) for i in range(11)], "not every instruction starts"),
    ],
)
def test_control_wrong_launches_are_found(launches, words, said_of):
    assert words in said_of(RING, None, launches)


def test_control_a_launch_of_what_must_wait_is_found(said_of):
    twice = Program(2, 1, [Instruction(0, 0, (0, 1), (0,)), Instruction(0, 0, (0,), (1,))])
    named = Named("twice", "allreduce", twice, goal("allreduce", 2))
    assert "1 starts with what it must wait for" in said_of(named, None, [(0, 1)])
