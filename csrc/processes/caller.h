#pragma once

#include <optional>
#include <string>

namespace fastreduce {

// The line of Python that called torch.distributed in this thread, as "train.py:42"; empty if there is none. Finding it
// takes longer than a small call: so it is looked for only if torch shows stack traces (TORCH_SHOW_CPP_STACKTRACES=1)
// or its flight recorder runs (TORCH_FR_BUFFER_SIZE).
std::optional<std::string> caller_in_python();

}  // namespace fastreduce
