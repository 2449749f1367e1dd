// A known pattern in memory that other processes open. A process that reads it right can trust the way to that memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "cuda/trial.h"

namespace fastreduce {

// As many bytes as in the trials of GPUs of one process.
constexpr int64_t kMarkBytes = kTrialBytes;

// Writes a rank's mark to its own memory.
void leave_mark(int device, std::byte* memory, int rank);

// Empty if a kernel on `device` reads a peer's mark right, else what went wrong. Some machines (IOMMU settings,
// virtualization) offer access to a peer's memory and lose data on the way.
std::string problem_with_mark(int device, std::byte* memory, int rank);

}  // namespace fastreduce
