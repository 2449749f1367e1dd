#include "cpu/kernels.h"

#include <cstdlib>
#include <stdexcept>
#include <string>
#include <vector>

namespace fastreduce {
namespace {

CpuKernels choose() {
  std::vector<CpuKernels> usable = {{"baseline", select_baseline}};
#ifdef FASTREDUCE_X86_KERNELS
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c")) usable.push_back({"avx2", select_avx2});
  if (usable.size() == 2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq"))
    usable.push_back({"avx512", select_avx512});
#endif
  const char* wanted = std::getenv("FASTREDUCE_CPU");
  if (!wanted) return usable.back();
  std::string names;
  for (const CpuKernels& kernels : usable) {
    if (std::string(wanted) == kernels.name) return kernels;
    names += std::string(names.empty() ? "" : ", ") + kernels.name;
  }
  throw std::invalid_argument("FASTREDUCE_CPU=" + std::string(wanted) + " cannot run here: this CPU has " + names);
}

}  // namespace

const CpuKernels& cpu_kernels() {
  static const CpuKernels chosen = choose();
  return chosen;
}

}  // namespace fastreduce
