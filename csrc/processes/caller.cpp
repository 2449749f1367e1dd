#include "processes/caller.h"

#include <torch/csrc/profiler/combined_traceback.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>

namespace fastreduce {
namespace {

bool is_positive(const char* variable) {
  const char* value = std::getenv(variable);
  return value && std::atoll(value) > 0;
}

bool wanted() {
  static const bool wanted = is_positive("TORCH_SHOW_CPP_STACKTRACES") || is_positive("TORCH_FR_BUFFER_SIZE") ||
                             is_positive("TORCH_NCCL_TRACE_BUFFER_SIZE");
  return wanted;
}

// Of torch or of this package.
bool is_library(const std::filesystem::path& file) {
  return std::any_of(file.begin(), file.end(),
                     [](const std::filesystem::path& part) { return part == "torch" || part == "fastreduce"; });
}

}  // namespace

std::optional<std::string> caller_in_python() {
  if (!wanted()) return std::nullopt;
  const auto trace = torch::CapturedTraceback::gather(/*python=*/true, /*script=*/false, /*cpp=*/false);
  const torch::SymbolizedTracebacks found = torch::symbolize({trace.get()});
  for (uint64_t number : found.tracebacks.at(0)) {
    const auto& frame = found.all_frames.at(number);
    const std::filesystem::path file(frame.filename);
    if (!is_library(file)) return file.filename().string() + ":" + std::to_string(frame.lineno);
  }
  return "";
}

}  // namespace fastreduce
