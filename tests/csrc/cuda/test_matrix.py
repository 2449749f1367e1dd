"""Every program, dtype and operation on all three engines: the same bytes, and the right ones."""

import pytest
from builds import CSRC, Build, needs_compiler, run
from program_files import write_programs
from virtual_builds import CONTENT, ENGINES, HERE, Mutant, Source, compile_all

ALL_KERNELS = HERE / "all_kernels.cpp"
# A GPU refuses a vector at an address that is no multiple of its size, the CPU does not.
KERNEL_OPTIONS = ("-O0", "-g0", "-fsanitize=alignment", "-fsanitize-undefined-trap-on-error")
SOURCES = {
    **ENGINES,
    **CONTENT,
    "cpu/tiles.cpp": Source(CSRC / "cpu/tiles.cpp"),
    "cpu/kernels.cpp": Source(CSRC / "cpu/kernels.cpp"),
    "test": Source(HERE / "matrix_test.cpp"),
    "kernels": Source(ALL_KERNELS, KERNEL_OPTIONS),
}

pytestmark = needs_compiler


@pytest.fixture(scope="module")
def objects(tmp_path_factory):
    """Of the unchanged sources: mutants are linked with most of them."""
    return compile_all({"plain": Build("plain", tmp_path_factory.mktemp("plain"))}, SOURCES)[
        "plain"
    ]


@pytest.fixture(scope="module")
def matrix(objects, tmp_path_factory):
    return Build("plain", tmp_path_factory.mktemp("test")).link([*objects.values()])


@pytest.fixture(scope="module")
def programs(tmp_path_factory):
    return write_programs(tmp_path_factory.mktemp("programs") / "programs.txt")


def test_matrix(matrix, programs):
    """Every eighth (program, ranks, dtype, operation), and all pairs with what else varies."""
    done = run(matrix, programs, "8")
    assert done.returncode == 0, done.stderr
    count, rest = done.stdout.split(" ", 1)
    assert int(count) >= 900 and rest == "cases right\n"


def test_control_a_thinner_matrix_misses_pairs(matrix, programs):
    done = run(matrix, programs, "97")
    assert done.returncode != 0
    assert "never met" in done.stderr


# With the kernels of one dtype: what is wrong shows in them, and all of them take seconds.
MUTANTS = {
    "averages divide at every step, on the CPU": Mutant(
        "cpu/tiles.cpp",
        "instruction.completes ? program.ranks : 1",
        "num_srcs > 1 ? program.ranks : 1",
        "float",
        "avg of f32",
    ),
    "averages divide at every step, on GPUs": Mutant(
        "cuda/launch.cu",
        "instruction->completes ? contributions : 1",
        "instruction->srcs.size() > 1 ? contributions : 1",
        "float",
        "tiles on one GPU",
    ),
    "averages divide twice": Mutant(
        "reduce.h",
        "a / static_cast<A>(contributions)",
        "a / static_cast<A>(contributions) / static_cast<A>(contributions)",
        "float",
        "avg of f32",
    ),
    "the least for the greatest, of one dtype": Mutant(
        "reduce.h",
        "make_if_accepted<int16_t, O>",
        "make_if_accepted<int16_t, std::conditional_t<std::is_same_v<O, Min>, Max, O>>",
        "int16_t",
        "min of i16",
    ),
    "one dtype unsigned": Mutant(
        "reduce.h",
        "make_if_accepted<int8_t, O>",
        "make_if_accepted<uint8_t, O>",
        "uint8_t",
        "of i8",
    ),
    "bfloat16 read as float16": Mutant(
        "reduce.h",
        "make_if_accepted<c10::BFloat16, O>",
        "make_if_accepted<c10::Half, O>",
        "c10::Half",
        "of bf16",
    ),
    "float16 accumulates in float16": Mutant(
        "reduce.h",
        "std::is_same_v<T, double>, T, float>;",
        "std::is_same_v<T, double> || std::is_same_v<T, c10::Half>, T, float>;",
        "c10::Half",
        "sum of f16",
    ),
    "a NaN does not win": Mutant(
        "reduce.h",
        "return b < a || b != b ? b : a;",
        "return b < a ? b : a;",
        "float",
        "special data",
    ),
    "the last source first": Mutant(
        "cuda/launch.cu",
        "for (int buffer : *buffers) args_",
        "for (int buffer : std::vector<int>(buffers->rbegin(), buffers->rend())) args_",
        "float",
        "tiles on one GPU",
    ),
    "the first elements forgotten, by vectors of 8 bytes": Mutant(
        "cuda/reduce_rows.cuh",
        "Range{tile == 0 ? 0 : begin, begin}",
        "Range{tile == 0 && row.vector_bytes != 8 ? 0 : begin, begin}",
        "float",
        "tiles on one GPU",
    ),
    "a copy by other threads than the sum before it": Mutant(
        "cuda/reduce_rows.cuh",
        "range.begin + static_cast<int64_t>(threadIdx.x) *",
        "range.begin + static_cast<int64_t>(K == 1 ? blockDim.x - 1 - threadIdx.x : threadIdx.x) *",
        "float",
        "tiles on one GPU",
    ),
    "vectors of a thread next to each other": Mutant(
        "cuda/reduce_rows.cuh",
        "[piece * block_threads()]",
        "[piece]",
        "float",
        "wrong byte",
    ),
    "an alignment believed that only most buffers have": Mutant(
        "cuda/launch.cu",
        "for (int buffer : used) differing",
        "for (int buffer : {used.front(), used.back()}) differing",
        "float",
        "",
    ),
    "slices that are not the shard together": Mutant(
        "cuda/enqueue.cu",
        "std::min(row.elems - begin, per_slice)",
        "std::min(row.elems - begin, std::min<int64_t>(per_slice, 64))",
        "float",
        "events",
    ),
}


def kernels_of(dtype: str) -> Source:
    return Source(ALL_KERNELS, (*KERNEL_OPTIONS, f"-DONLY={dtype}"))


@pytest.fixture(scope="module")
def float_objects(objects, tmp_path_factory):
    return {
        **objects,
        "kernels": kernels_of("float").compile(Build("plain", tmp_path_factory.mktemp("float"))),
    }


@pytest.mark.parametrize("name", MUTANTS)
def test_mutants_are_found(name, float_objects, programs, tmp_path):
    mutant = MUTANTS[name]
    sources = {**SOURCES, "kernels": kernels_of(mutant.mode)}
    done = run(mutant.build(tmp_path, sources, float_objects), programs, "8")
    assert done.returncode != 0
    assert mutant.words in done.stderr
