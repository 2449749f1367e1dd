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


def test_nothing_is_kept_in_local_memory(kernels):
    for kernel in kernels:
        assert not re.search(r"\b(LDL|STL)\b", kernel)


def test_control_without_registers_loads_wait_for_sums(tmp_path):
    few = mutated(tmp_path, "cuda/launch.h", "kBlocksPerProcessor = 3", "kBlocksPerProcessor = 8")
    code = machine_code(tmp_path, few)
    assert any(before < every for before, every in map(loads_before_the_first_sum, blocks(code)))
    assert re.search(r"\b(LDL|STL)\b", code)
