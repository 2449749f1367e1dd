"""Calls with torch's tensors on virtual GPUs, and what they are refused with; and mutants that must
not get through. No torch for CUDA is needed: the tensors only say where their memory is."""

from pathlib import Path

import pytest
from builds import Build, needs_compiler, run
from program_files import every_program, write_programs
from virtual_builds import HERE, TEST_OPTIONS, VIRTUAL_TORCH, WITH_TORCH, Mutant, Source

SOURCES = {
    **WITH_TORCH,
    "tables.cpp": Source(HERE / "virtual_calls.cpp", TEST_OPTIONS),
    "test": Source(HERE / "tensors_test.cpp", (*TEST_OPTIONS, *VIRTUAL_TORCH)),
}

pytestmark = [needs_compiler, pytest.mark.sweep("virtual GPUs")]


@pytest.fixture
def arguments(tmp_path):
    """A file of programs, and a folder."""
    leaders = [x for x in every_program() if x.name == "leader"]
    return [write_programs(tmp_path / "programs.txt", leaders), tmp_path]


@pytest.mark.parametrize("has_home", [True, False])
def test_tensors(objects, arguments, tmp_path, has_home):
    """A user without a home folder has no folder for what was found out about GPUs, either."""
    test = Build("plain", tmp_path).link([*objects.values()], tmp_path, "torch_cpu")
    programs, folder = arguments
    done = run(test, programs, folder if has_home else "")
    assert (done.returncode, done.stdout, done.stderr) == (0, "7 cases right\n", "")
    assert (folder / "peer_access.txt").exists() == has_home
    assert not Path("/peer_access.txt").exists()


# There is one mode.
MUTANTS = {
    "a capture is asked for a copy": Mutant(
        "tables.cpp",
        "call.engine().may_copy(call.devices())",
        "(call.engine().may_copy(call.devices()) || true)",
        "",
        "captured: it says",
    ),
    "one GPU is refused a copy": Mutant(
        "cuda/engine.cpp",
        "if (on_one_device(placement.device_of_rank)) return true;",
        "",
        "",
        "one GPU, captured: it says",
    ),
}


@pytest.mark.sweep("mutants")
@pytest.mark.parametrize("name", MUTANTS)
def test_mutants_are_found(name, objects, arguments, tmp_path):
    mutant = MUTANTS[name]
    done = run(mutant.build(tmp_path, SOURCES, objects, "torch_cpu"), *arguments)
    assert done.returncode != 0
    assert mutant.words in done.stdout + done.stderr
