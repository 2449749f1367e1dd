"""What the CUDA engine for one process makes of torch's devices and streams, with a torch of the
test's own on the virtual CUDA runtime; and mutants that must not get through."""

import pytest
from builds import Build, needs_compiler, run
from program_files import every_program, write_programs
from virtual_builds import HERE, TEST_OPTIONS, VIRTUAL_TORCH, WITH_TORCH, Mutant, Source

SOURCES = {
    **WITH_TORCH,
    "test": Source(HERE / "placement_test.cpp", (*TEST_OPTIONS, *VIRTUAL_TORCH)),
}

pytestmark = [needs_compiler, pytest.mark.sweep("virtual GPUs")]


@pytest.fixture
def arguments(tmp_path):
    """A file of programs, a library in the place of NVML, and a folder."""
    nvml = Build("plain", tmp_path).library(
        HERE / "virtual_nvml.cpp", tmp_path, "libnvidia-ml.so.1"
    )
    some = [x for x in every_program() if x.name in ("ring", "broadcast")]
    return [write_programs(tmp_path / "programs.txt", some), nvml, tmp_path]


@pytest.mark.parametrize(("first", "cases"), [("place", 28), ("run", 1)])
def test_placement(first, cases, objects, arguments, tmp_path):
    done = run(Build("plain", tmp_path).link([*objects.values()], tmp_path), *arguments, first)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{cases} cases right\n", "")


# There is one mode.
MUTANTS = {
    "peers without NVLink count as linked": Mutant(
        "cuda/engine.cpp", "has_nvlink) ?", "can_reach) ?", "", "are at nvlink, not pcie"
    ),
    "torch is not told of peers": Mutant(
        "cuda/engine.cpp",
        "when_reached(enable_in_torch);",
        "static_cast<void>(enable_in_torch);",
        "",
        "asked to connect",
    ),
    "all streams must be captured": Mutant(
        "cuda/peers.cpp",
        "if (capture_of(devices[rank], streams[rank])) return true;\n  return false;",
        "if (!capture_of(devices[rank], streams[rank])) return false;\n  return true;",
        "",
        "copies of tensors",
    ),
    "streams are those of the first device": Mutant(
        "cuda/engine.cpp",
        "Stream(device.index())",
        "Stream(0)",
        "",
        "cudaErrorInvalidResourceHandle",
    ),
    "measured sizes for the copy engine are left out": Mutant(
        "cuda/engine.cpp",
        "placement.copy_engine_bytes = {nvlink_copy_engine_bytes, pcie_copy_engine_bytes};",
        "",
        "",
        "devices 0 1 enqueued: 0 copies",
    ),
    "NVLink's size is taken without NVLink": Mutant(
        "cuda/enqueue.cpp",
        "has_nvlink(device, other) ? nvlink : pcie",
        "can_reach(device, other) ? nvlink : pcie",
        "",
        "devices 0 2 enqueued: 0 copies",
    ),
    "a graph is replayed for another size over NVLink": Mutant(
        "cuda/events.cpp",
        "static_cast<uint64_t>(placement.copy_engine_bytes.nvlink),",
        "",
        "",
        "which is slower",
    ),
    "a graph is replayed for another size over PCIe": Mutant(
        "cuda/events.cpp",
        "static_cast<uint64_t>(placement.copy_engine_bytes.pcie),",
        "",
        "",
        "which is slower",
    ),
    "torch's guard is left out": Mutant(
        "cuda/engine.cpp",
        "if (tables.empty()) return;\n    const c10::cuda::CUDAGuard guard(devices.front());",
        "if (tables.empty()) return;",
        "",
        "guarded",
    ),
}


@pytest.mark.sweep("mutants")
@pytest.mark.parametrize("name", MUTANTS)
def test_mutants_are_found(name, objects, arguments, tmp_path):
    mutant = MUTANTS[name]
    done = run(mutant.build(tmp_path, SOURCES, objects), *arguments, "place")
    assert (done.returncode, done.stderr) != (0, "")
    assert mutant.words in done.stdout + done.stderr
