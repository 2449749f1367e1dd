// Which copies between two GPUs are left to the copy engine, which leaves the multiprocessors free.
#pragma once

#include <atomic>
#include <cstdint>

namespace fastreduce {

// From this size on, where `fastreduce tune` has not measured it. Predicted: a copy takes 5 to 10 us before the first
// byte moves, in which a kernel moves 2 to 4 MiB over NVLink (400 GB/s); at 8 MiB (20 us) that is no more than what the
// multiprocessors gain.
constexpr int64_t kCopyEngineBytes = 8 << 20;

// From which size on, by what connects the two.
struct CopyEngineBytes {
  int64_t nvlink = kCopyEngineBytes;
  int64_t pcie = kCopyEngineBytes;
};

// Those that calls go by: `fastreduce tune` measures them.
inline std::atomic<int64_t> nvlink_copy_engine_bytes{kCopyEngineBytes}, pcie_copy_engine_bytes{kCopyEngineBytes};

}  // namespace fastreduce
