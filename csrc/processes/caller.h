#pragma once

#include <optional>
#include <string>

namespace fastreduce {

// Where Python code called into torch.distributed on this thread, as "train.py:42"; empty if none did. Only where torch
// shows stack traces (TORCH_SHOW_CPP_STACKTRACES=1) or its flight recorder runs (TORCH_FR_BUFFER_SIZE), since finding
// out takes longer than a small call.
std::optional<std::string> caller_in_python();

}  // namespace fastreduce
