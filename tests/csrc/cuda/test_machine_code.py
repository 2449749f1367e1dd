"""What nvcc makes of the kernel, read from its machine code, which takes no GPU."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import torch
from builds import CSRC, mutated
from torch.utils.cpp_extension import include_paths

KERNELS = """
#include "cuda/reduce_rows.cuh"
namespace fastreduce {
Kernel kernels[] = {reduce_rows<float, Avg>, reduce_rows<c10::BFloat16, Avg>};
}
"""
OPTIONS = ("-cubin", "-arch=sm_90", "-std=c++20", "-O3", "-fmad=false", "--expt-relaxed-constexpr")


def tool(name: str) -> str | None:
    """On the PATH, or from Nvidia's wheels beside torch."""
    wheels = Path(torch.__file__).parent.parent.glob(f"nvidia/cu*/bin/{name}")
    return shutil.which(name) or next((str(path) for path in wheels), None)


pytestmark = [
    pytest.mark.sweep("machine code"),
    pytest.mark.skipif(
        not (tool("nvcc") and tool("nvdisasm")),
        reason="no nvcc or no nvdisasm (wheels nvidia-cuda-nvcc, nvidia-cuda-nvdisasm)",
    ),
]


def machine_code(folder: Path, csrc: Path) -> str:
    source, made = folder / "kernels.cu", folder / "kernels.cubin"
    source.write_text(KERNELS)
    includes = [f"-I{csrc}", *(x for path in include_paths() for x in ("-isystem", path))]
    subprocess.run([tool("nvcc"), *OPTIONS, *includes, source, "-o", made], check=True)
    listing = [tool("nvdisasm"), "--print-code", made]
    return subprocess.run(listing, check=True, capture_output=True, text=True).stdout


def blocks(kernel: str) -> list[list[str]]:
    """The instructions between two labels."""
    found = [re.findall(r"/\*[0-9a-f]{4,}\*/\s+([^;]*);", x) for x in re.split(r"\n\.L_", kernel)]
    return [block for block in found if block]


def loads_before_the_first_sum(block: list[str]) -> tuple[int, int]:
    """Of 16 bytes: those before it, and all."""
    first_sum = next((i for i, text in enumerate(block) if "FADD" in text), len(block))
    loads = [i for i, text in enumerate(block) if "LDG.E.128" in text]
    return sum(i < first_sum for i in loads), len(loads)


# Where the parameters begin that sm_90 passes to a kernel, and behind the table's head its first
# row and instruction, in words of 8 bytes.
PARAMETERS = 0x210
HEAD_BYTES, FIRST_BYTES = 24, 32


def first_words_read_at_once(kernel: str) -> set[int]:
    """Those of a launch's first row and instruction that are read before anything is waited for:
    from fixed places, before the first branch."""
    entry = re.split(r"\bBRA\b", "\n".join(blocks(kernel)[0]))[0]
    read = set()
    for width, place in re.findall(r"\bU?LDC(\S*) .*c\[0x0\]\[(0x[0-9a-f]+)\]", entry):
        first = int(place, 16) - PARAMETERS - HEAD_BYTES
        read |= {first // 8, (first + (7 if width == ".64" else 0)) // 8}
    return read & set(range(FIRST_BYTES // 8))


def waits_for_parameters(block: list[str]) -> int:
    """How many parameters are read one after the other before the first load of data: each names
    the place of the next."""
    depth: dict[str, int] = {}
    for text in block:
        if "LDG" in text:
            break
        written, *used = re.findall(r"\bU?R\d+\b", text) or [""]
        before = max((depth.get(register, 0) for register in used), default=0)
        by_register = re.search(r"\bLDC.*\[U?R\d+", text)
        depth[written] = before + (1 if by_register else 0)
        if ".64" in text and written:
            depth[f"R{int(written.strip('UR')) + 1}"] = depth[written]
    return max(depth.values(), default=0)


@pytest.fixture(scope="module")
def kernels(tmp_path_factory):
    code = machine_code(tmp_path_factory.mktemp("kernels"), CSRC)
    return re.split(r"\.section\s+\.text\.", code)[1:]


# Blocks of fewer loads are the general loop's, which ptxas unrolls over one source at a time.
UNROLLED = 4


def test_all_vectors_are_under_way_before_the_first_is_waited_for(kernels):
    assert len(kernels) == 2
    for kernel in kernels:
        counts = [x for x in map(loads_before_the_first_sum, blocks(kernel)) if x[1] >= UNROLLED]
        assert all(before == every for before, every in counts), counts
        assert {every for _, every in counts} == {4, 8}


def test_a_small_call_waits_for_one_parameter_before_its_data(kernels):
    """One row's: where its pointers are is known at once, so only they are waited for."""
    for kernel in kernels:
        assert first_words_read_at_once(kernel) == set(range(FIRST_BYTES // 8))
        waits = [
            waits_for_parameters(x)
            for x in blocks(kernel)
            if loads_before_the_first_sum(x)[1] >= UNROLLED
        ]
        assert set(waits) == {1}


def test_control_parameters_that_name_others_are_waited_for(tmp_path):
    numbers = "args.pointer(first_pointer + args.entries<uint16_t>(args.steps_at)[i])"
    chained = mutated(tmp_path, "cuda/reduce_rows.cuh", "args.pointer(first_pointer + i)", numbers)
    kernel = re.split(r"\.section\s+\.text\.", machine_code(tmp_path, chained))[1]
    assert 2 in map(waits_for_parameters, blocks(kernel))


def test_control_a_row_that_is_read_later(tmp_path):
    late = mutated(tmp_path, "cuda/reduce_rows.cuh", 'asm volatile("" : "+l"(word));', ";")
    kernel = re.split(r"\.section\s+\.text\.", machine_code(tmp_path, late))[1]
    assert first_words_read_at_once(kernel) != set(range(FIRST_BYTES // 8))


def test_nothing_is_kept_in_local_memory(kernels):
    for kernel in kernels:
        assert not re.search(r"\b(LDL|STL)\b", kernel)


def test_control_without_registers_loads_wait_for_sums(tmp_path):
    few = mutated(tmp_path, "cuda/launch.h", "kBlocksPerProcessor = 3", "kBlocksPerProcessor = 8")
    code = machine_code(tmp_path, few)
    assert any(before < every for before, every in map(loads_before_the_first_sum, blocks(code)))
    assert re.search(r"\b(LDL|STL)\b", code)
