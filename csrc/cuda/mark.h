// A mark in memory that other processes open: who reads it there as it was written may believe the rest.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "cuda/trial.h"

namespace fastreduce {

// As in the trials of GPUs of one process.
constexpr int64_t kMarkBytes = kTrialBytes;

// Leaves a rank's mark in memory of its own.
void leave_mark(int device, std::byte* memory, int rank);

// "" if a kernel on `device` reads a peer's mark, else what it does. Some machines (IOMMU settings, virtualization)
// offer access to a peer's memory and lose data on the way.
std::string problem_with_mark(int device, std::byte* memory, int rank);

}  // namespace fastreduce
