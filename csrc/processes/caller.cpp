#include "processes/caller.h"

#include <dlfcn.h>
#include <torch/csrc/profiler/combined_traceback.h>

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

// The folder of the library that contains this function.
std::filesystem::path folder_of(const void* function) {
  Dl_info found{};
  dladdr(function, &found);
  return std::filesystem::path(found.dli_fname ? found.dli_fname : "").parent_path();
}

// Whether the file belongs to torch or to this package.
bool is_library(const std::string& file) {
  static const std::string package = folder_of(reinterpret_cast<const void*>(&caller_in_python)).string() + "/";
  static const std::string torch =
      folder_of(reinterpret_cast<const void*>(&torch::symbolize)).parent_path().string() + "/";
  return file.starts_with(package) || file.starts_with(torch);
}

}  // namespace

std::optional<std::string> caller_in_python() {
  if (!wanted()) return std::nullopt;
  const auto trace = torch::CapturedTraceback::gather(/*python=*/true, /*script=*/false, /*cpp=*/false);
  const torch::SymbolizedTracebacks found = torch::symbolize({trace.get()});
  for (uint64_t number : found.tracebacks.at(0)) {
    const auto& frame = found.all_frames.at(number);
    if (is_library(frame.filename)) continue;
    return std::filesystem::path(frame.filename).filename().string() + ":" + std::to_string(frame.lineno);
  }
  return "";
}

}  // namespace fastreduce
