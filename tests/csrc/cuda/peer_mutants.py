"""Of the engines' mutants, those that find out otherwise what GPUs can reach of each other."""

from virtual_builds import Mutant

PEER_MUTANTS = {
    "one peer not enabled": Mutant(
        "cuda/peers.cpp",
        "= cudaDeviceEnablePeerAccess(other, 0);",
        "= other == 1 ? cudaSuccess : cudaDeviceEnablePeerAccess(other, 0);",
        "orders",
        "peer",
    ),
    "a proof does not wait for its data": Mutant(
        "cuda/trial.cpp",
        '"cudaMemcpyAsync");\n    finish(side);',
        '"cudaMemcpyAsync");',
        "orders",
        "unordered",
    ),
    "a trial waits inside CUDA": Mutant(
        "cuda/trial.cpp",
        "!is_done(side.stream.get())",
        "cudaStreamSynchronize(side.stream.get()) != cudaSuccess",
        "copies hang",
        "hang:",
    ),
    "a busy device taken for a pair that hangs": Mutant(
        "cuda/trial.cpp",
        "patience_s_ = std::numeric_limits<double>::infinity()",
        "patience_s_ = kDeadline_s",
        "busy devices",
        "wrong about the pair",
    ),
    "a trial waits for ever": Mutant(
        "cuda/trial.cpp",
        "clock_s() > end_s",
        "clock_s() > 1e9 * end_s",
        "kernels hang",
        "still waits",
    ),
    "memory given up that a hanging copy may use": Mutant(
        "cuda/trial.cpp",
        "  } catch (const Hangs&) {\n",
        "  } catch (const Hangs&) {\n    trial.done();\n",
        "copies hang",
        "which is freed",
    ),
    "memory given up under work when a trial fails": Mutant(
        "cuda/trial.cpp",
        "  try {\n    const std::string problem = trial->problem();",
        "  Trial own(device, other);\n  try {\n    const std::string problem = own.problem();",
        "failures",
        "which is freed",
    ),
    "peer access taken from under a copy that hangs": Mutant(
        "cuda/peers.cpp", "&& !found.hangs ", "", "kernels hang", "disabled under"
    ),
    "peer access of a trial that failed is not taken back": Mutant(
        "cuda/peers.cpp",
        "enabled.contains({device, other})",
        "status == cudaSuccess",
        "lost copies",
        "keeps its peer access",
    ),
    "every pair of a device that hangs is tried out": Mutant(
        "cuda/peers.cpp",
        "hanging.contains(device) || hanging.contains(other)",
        "false",
        "kernels hang",
        "waited for",
    ),
    "what hung is forgotten": Mutant(
        "cuda/peers.cpp",
        "  proofs.keep(device, other, found.problem);",
        "  if (!found.hangs) proofs.keep(device, other, found.problem);",
        "copies hang",
        "not three pairs",
    ),
    "NVML is not asked": Mutant(
        "cuda/peers.cpp",
        "if (!nvlink) nvlink = nvlink_between(device, other);",
        "",
        "nvlinks",
        "wrong about NVLink",
    ),
    "NVML is asked of other GPUs": Mutant(
        "cuda/nvml.cpp",
        "bus, sizeof bus, device)",
        "bus, sizeof bus, 3 - device)",
        "nvlinks",
        "wrong",
    ),
    "what NVML does not know is taken for PCIe": Mutant(
        "cuda/nvml.cpp", "return std::nullopt;", "return false;", "nvlinks without NVML", "wrong"
    ),
    "closed memory is not looked for": Mutant(
        "cuda/closed_memory.cpp",
        "closed.insert({device, buffer});",
        "",
        "closed memory",
        "no access to foreign memory",
    ),
    "pools are not opened": Mutant(
        "cuda/closed_memory.cpp",
        "cudaMemPoolSetAccess(pool, &access, 1) == cudaSuccess",
        "cudaMemPoolSetAccess(pool, &access, 0) == cudaErrorUnknown",
        "pools",
        "pools were opened",
    ),
    "a pool that is open for one device taken for open to all": Mutant(
        "cuda/closed_memory.cpp",
        "try_emplace({device, allocation.pool}",
        "try_emplace({0 * device, allocation.pool}",
        "pools",
        "",
    ),
    "access asked for the device that happens to be current": Mutant(
        "cuda/closed_memory.cpp",
        "  const DeviceGuard guard(device);  // it is",
        "  (void)device;  // it is",
        "closed memory",
        "no access to foreign memory",
    ),
    "only a rank's first memory is looked at": Mutant(
        "cuda/closed_memory.cpp",
        "last[buffer].holds(pointer)",
        "last[buffer].bytes > 0",
        "closed memory",
        "no access to foreign memory",
    ),
    "the copy engine of a device without access": Mutant(
        "cuda/enqueue.cpp",
        "reaches(device_of(src), dst) && reaches(device_of(dst), src);",
        "true;",
        "closed memory",
        "no access to foreign memory: copy",
    ),
}
