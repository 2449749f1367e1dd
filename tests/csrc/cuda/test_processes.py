"""The engine for processes on virtual GPUs, with threads as ranks, under ThreadSanitizer; and
mutants of it that must not get through."""

import pytest
from builds import CSRC, Build, needs_compiler, run
from program_files import programs_of_processes, some, write_programs
from virtual_builds import ENGINES, FEW_KERNELS, HERE, TEST_OPTIONS, VIRTUAL_TORCH, Mutant, Source

PROCESSES = HERE.parent / "processes"
SOURCES = {
    **ENGINES,
    **FEW_KERNELS,
    "cuda/ipc.cpp": Source(CSRC / "cuda" / "ipc.cpp"),
    "cuda/processes.cpp": Source(CSRC / "cuda" / "processes.cpp", VIRTUAL_TORCH),
    **{
        f"processes/{name}.cpp": Source(CSRC / "processes" / f"{name}.cpp")
        for name in (
            "devices",
            "flags",
            "group",
            "invitations",
            "failures",
            "rank_schedule",
            "bell",
        )
    },
    "memory": Source(PROCESSES / "one_process_memory.cpp"),
    "kernels of the CPU": Source(HERE.parent / "cpu" / "few_kernels.cpp", ("-DFEWEST_KERNELS",)),
    "choice of kernels": Source(CSRC / "cpu" / "kernels.cpp"),
    **{
        name: Source(HERE / f"{name}_test.cpp", (*TEST_OPTIONS, *VIRTUAL_TORCH))
        for name in ("processes", "process_errors")
    },
}

pytestmark = [needs_compiler, pytest.mark.sweep("virtual GPUs")]


@pytest.fixture(scope="module")
def programs(tmp_path_factory):
    path = tmp_path_factory.mktemp("programs") / "programs.txt"
    return write_programs(path, [*programs_of_processes()])


@pytest.mark.sweep("sanitizers")
def test_small_calls_at_once(objects_of, tmp_path):
    parts = objects_of("thread")
    programs = write_programs(tmp_path / "programs.txt", some(programs_of_processes()))
    done = run(Build("thread", tmp_path).link([*parts.values()], tmp_path), programs)
    assert (done.returncode, done.stderr) == (0, "")
    count, rest = done.stdout.split(" ", 1)
    assert int(count) > 50 and rest == "cases right\n"


# The mode stands empty: the test has one.
MUTANTS = {
    "copies are not waited for": Mutant(
        "processes/rank_schedule.cpp",
        "if (copied.contains(cell)) after.push_back(copied[cell]);",
        "",
        "",
        "wrong value",
    ),
    "results are copied out before they are there": Mutant(
        "processes/rank_schedule.cpp",
        "{cell.first}, {tensor}, false}, std::move(written));",
        "{cell.first}, {tensor}, false}, {});",
        "",
        "wrong value",
    ),
    "kernels are not let go when a call fails": Mutant(
        "cuda/ipc.cpp", "at_once_->signals.abort();", "return;", "", "waits on after its call"
    ),
    "kernels do not wait after calls that differ": Mutant(
        "processes/devices.cpp",
        "if (!may_go_on) ",
        "",
        "",
        "wrong value",
    ),
    "a group goes on though a GPU may be at its last call": Mutant(
        "processes/devices.cpp",
        "if (may_go_on && !trouble.empty())",
        "if (may_go_on && false)",
        "",
        "thrown where a GPU failed",
    ),
    "kernels do not wait as long as the group": Mutant(
        "cuda/ipc.cpp", "kNoLimit = UINT32_MAX", "kNoLimit = 0", "", "kernel trapped"
    ),
    "signals are those of an earlier group": Mutant(
        "cuda/ipc.cpp", "  LaneSignals::reset(device_, words[rank_], words.size());\n", "", "", ""
    ),
    "nobody looks whether a peer's memory is read right": Mutant(
        "cuda/ipc.cpp",
        "if (!problem_.empty()) return false;",
        "",
        "",
        "reached without peer access",
    ),
    "kernels wait though two ranks have come to one GPU": Mutant(
        "cuda/ipc.cpp", "if (!staging_.at_once_) return false;", "", "", ""
    ),
    "memory is given up under a mark that is on its way": Mutant(
        "cuda/ipc.cpp", "Kept::instance().forget(std::move(memory), {});", "", "", "which is freed"
    ),
    "a group that ends breaks the capture of another thread": Mutant(
        "cuda/processes.cpp", "  RelaxedCapture relaxed;\n", "", "", "not allowed while capturing"
    ),
    "a call in a capture has a stream": Mutant(
        "processes/devices.cpp",
        "if (refuse_captures) refuse_captures(device.index());",
        "",
        "",
        "in a capture",
    ),
    "a group that ends makes a context": Mutant(
        "cuda/ipc.cpp",
        "const std::shared_ptr<void> calls = torch_.calls_on(device_);",
        "const DeviceGuard guard(device_);\n    const RelaxedCapture relaxed;",
        "",
        "a context was made",
    ),
    "memory that is pinned makes a context": Mutant(
        "cuda/processes.cpp",
        "const c10::cuda::OptionalCUDAGuard guard(c10::cuda::getDeviceIndexWithPrimaryContext());",
        "",
        "",
        "a context was made",
    ),
    "an asynchronous call makes a context in its caller's thread": Mutant(
        "processes/devices.cpp",
        "const c10::DeviceGuard here(device);",
        "",
        "",
        "a context was made",
    ),
    "an asynchronous call makes a context in the queue's thread": Mutant(
        "processes/devices.cpp",
        "c10::impl::VirtualGuardImpl(stream_.device_type()).setDevice(stream_.device());",
        "",
        "",
        "a context was made",
    ),
    "an error of a group that ends is left to a later launch": Mutant(
        "cuda/ipc.cpp",
        "would be blamed for it.\n    cudaGetLastError();",
        "would be blamed for it.",
        "",
        "the last error is",
    ),
    "nobody looks whether peers are there": Mutant(
        "processes/group.cpp", "missing(true), late", "late", "", "reached its timeout"
    ),
}


@pytest.mark.sweep("mutants")
@pytest.mark.parametrize("name", MUTANTS)
def test_mutants_are_found(name, objects_of, programs, tmp_path):
    mutant = MUTANTS[name]
    test = mutant.build(tmp_path, SOURCES, objects_of(mutant.sanitizer))
    done = run(test, programs, "3")  # programs for as many ranks
    assert done.returncode != 0
    assert mutant.words in done.stdout + done.stderr
