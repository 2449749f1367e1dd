#pragma once

#include <optional>

namespace fastreduce {

// Whether NVLink connects the two, directly or by a switch. NVML knows, the driver's library for what nvidia-smi shows:
// CUDA itself does not say. nullopt where it cannot be asked; a warning then says why, once.
std::optional<bool> nvlink_between(int device, int other);

}  // namespace fastreduce
