"""Every program, dtype and operation on all three engines: the same bytes, and the right ones."""

import pytest
from builds import CSRC, Build, needs_compiler, run
from virtual_builds import CONTENT, ENGINES, HERE, Mutant, Source

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

pytestmark = [needs_compiler, pytest.mark.sweep("matrix")]


@pytest.fixture(scope="module")
def matrix(objects, tmp_path_factory):
    folder = tmp_path_factory.mktemp("test")
    return Build("plain", folder).link([*objects.values()], folder)


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
        "instruction.completes",
        "num_srcs > 1",
        "float",
        "avg of Float",
    ),
    "averages divide at every step, on GPUs": Mutant(
        "cuda/launch.cpp",
        "instruction->completes",
        "instruction->srcs.size() > 1",
        "float",
        "tiles on one GPU",
    ),
    "averages divide twice": Mutant(
        "reduce.h",
        "acc[n] / static_cast<A>(parameter)",
        "acc[n] / static_cast<A>(parameter) / static_cast<A>(parameter)",
        "float",
        "avg of Float",
    ),
    "the least for the greatest": Mutant(
        "ops.h",
        "return b > a || b != b ? b : a;",
        "return b < a || b != b ? b : a;",
        "float",
        "max of Float",
    ),
    "the least for the greatest, on GPUs": Mutant(
        "cuda/launch.cpp",
        "flipped_bits(dtype, op)",
        "flipped_bits(dtype, Op::min)",
        "float",
        "max of Float",
    ),
    "signs dropped on GPUs": Mutant(
        "reduce.h",
        "(which & kTopBit ? kTop : 0)",
        "(which & kOtherBits ? kTop : 0)",
        "int16_t",
        "of Short",
    ),
    "a result that stays flipped": Mutant(
        "reduce.h", "    }\n  flip_bits<O>(parameter, acc);", "    }", "float", "max of Float"
    ),
    "a first value not flipped": Mutant(
        "reduce.h", "acc);\n      flip_bits<O>(parameter, acc);", "acc);", "float", "max of Float"
    ),
    "signs that matter are dropped": Mutant(
        "ops.h",
        "std::conditional_t<O::ignores_sign, Unsigned<T>, T>",
        "Unsigned<T>",
        "int16_t",
        "of Short",
    ),
    "bfloat16 read as float16": Mutant(
        "ops.h",
        "Element<DType::bf16, c10::BFloat16>",
        "Element<DType::bf16, c10::Half>",
        "c10::Half",
        "of BFloat16",
    ),
    "float16 accumulates in float16": Mutant(
        "ops.h",
        "std::is_same_v<T, double>, T, float>;",
        "std::is_same_v<T, double> || std::is_same_v<T, c10::Half>, T, float>;",
        "c10::Half",
        "sum of Half",
    ),
    "a NaN does not win": Mutant(
        "ops.h",
        "return b < a || b != b ? b : a;",
        "return b < a ? b : a;",
        "float",
        "special data",
    ),
    "the last source first": Mutant(
        "cuda/launch.cpp",
        "for (int src : x->srcs) pointers_",
        "for (int src : std::vector<int>(x->srcs.rbegin(), x->srcs.rend())) pointers_",
        "float",
        "tiles on one GPU",
    ),
    "the first elements forgotten": Mutant(
        "cuda/reduce_rows.cuh",
        "tile == 0 ? row.head_elems : 0;",
        "0;",
        "float",
        "tiles on one GPU",
    ),
    "destinations that are not the sources taken for them": Mutant(
        "cuda/launch.cpp",
        "return x.srcs == x.dsts ?",
        "return x.srcs.size() == x.dsts.size() ?",
        "float",
        "wrong byte",
    ),
    "operands read behind the end of what is passed": Mutant(
        "cuda/launch.cpp",
        "return offsetof(LaunchArgs, table) + at;",
        "return offsetof(LaunchArgs, table) + at - sizeof(std::byte*);",
        "float",
        "",
    ),
    "a kernel as loaded on another GPU": Mutant(
        "cuda/line.cpp", "known[{kernel, device}]", "known[{kernel, 0 * device}]", "float", ""
    ),
    "a copy by other threads than the sum before it": Mutant(
        "cuda/reduce_rows.cuh",
        "unrolled(static_cast<int>(threadIdx.x) *",
        "unrolled(static_cast<int>("
        "instruction.num_srcs == 1 ? blockDim.x - 1 - threadIdx.x : threadIdx.x) *",
        "float",
        "tiles on one GPU",
    ),
    "vectors of a thread next to each other": Mutant(
        "cuda/reduce_rows.cuh",
        "[vector * block_threads()]",
        "[vector]",
        "float",
        "wrong byte",
    ),
    "an alignment believed that only most buffers have": Mutant(
        "cuda/launch.cpp",
        "for (const std::byte* pointer : pointers) differing",
        "for (const std::byte* pointer : {pointers.front(), pointers.back()}) differing",
        "float",
        "",
    ),
    "slices that are not the shard together": Mutant(
        "cuda/enqueue.cpp",
        "std::min(row.elems - begin, per_slice)",
        "std::min(row.elems - begin, std::min<int64_t>(per_slice, 64))",
        "float",
        "events",
    ),
}


def kernels_of(dtype: str) -> Source:
    return Source(ALL_KERNELS, (*KERNEL_OPTIONS, f"-DONLY={dtype}"))


@pytest.fixture(scope="module")
def float_objects(objects, object_files):
    return {**objects, "kernels": kernels_of("float").compile(Build("plain", object_files))}


@pytest.mark.parametrize("name", MUTANTS)
def test_mutants_are_found(name, float_objects, programs, tmp_path):
    mutant = MUTANTS[name]
    sources = {**SOURCES, "kernels": kernels_of(mutant.mode)}
    done = run(mutant.build(tmp_path, sources, float_objects), programs, "8")
    assert done.returncode != 0
    assert mutant.words in done.stderr
