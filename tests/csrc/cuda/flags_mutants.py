"""Calls by flags with one thing wrong, and what the modes of test_engines.py say of each."""

from virtual_builds import Mutant

FLAGS_MUTANTS = {
    "a kernel does not wait until the others have begun": Mutant(
        "cuda/signals.cuh", "return meet(1);", "return true;", "flags", "FAILED"
    ),
    "a kernel ends before the others are done": Mutant(
        "cuda/signals.cuh",
        "    meet(instructions + 2);",
        "    tell(instructions + 2);",
        "flags",
        "",
    ),
    "an instruction does not wait for those of other GPUs": Mutant(
        "cuda/signals.cuh", "if (step.num_waits == 0)", "if (true)", "flags", "FAILED"
    ),
    "what is told says nothing of the data": Mutant(
        "cuda/signals.cuh", "__ATOMIC_RELEASE", "__ATOMIC_RELAXED", "flags", "data race", "thread"
    ),
    "signals must not wrap around": Mutant(
        "cuda/signals.cuh",
        "static_cast<int32_t>(load_acquire(word(args.lane, lane)) - wanted) < 0",
        "load_acquire(word(args.lane, lane)) < wanted",
        "flags",
        "FAILED",
    ),
    "a load keeps out the launch that it waits for": Mutant(
        "cuda/line.cpp",
        "  {\n    const std::lock_guard lock(mutex);\n",
        "  static std::mutex all;\n  const std::lock_guard alone(all);\n"
        "  {\n    const std::lock_guard lock(mutex);\n",
        "flags",
        "kernel trapped",
    ),
    "a wait that is too long": Mutant(
        "cuda/flags.cpp", "kMaxWaitS = 60", "kMaxWaitS = 0", "flags", "kernel trapped"
    ),
    "waits counted in 8 bits": Mutant(
        "cuda/launch.cpp",
        "static_cast<uint16_t>(waits_.size())",
        "static_cast<uint8_t>(waits_.size())",
        "flags",
        "",
    ),
    "waits take no room": Mutant(
        "cuda/launch.cpp",
        "(*steps)[x].waits.size() * sizeof(WaitArg)",
        "(*steps)[x].waits.size() * 0",
        "flags",
        "back and forth",
    ),
    "what an earlier row waits for takes no room": Mutant(
        "cuda/launch.cpp",
        "bytes(instructions_, row_steps_, waits_)",
        "bytes(instructions_)",
        "flags",
        "",
    ),
    "more blocks than run at the same time": Mutant(
        "cuda/flags.cpp",
        "launch.blocks > most_blocks",
        "launch.blocks > most_blocks + 1",
        "flags",
        "by flags",
    ),
}
