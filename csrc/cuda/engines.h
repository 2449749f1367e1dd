// The engines for CUDA memory. They know raw pointers, devices and streams, not torch.
#pragma once

#include <cuda_runtime.h>

#include <vector>

#include "rows.h"
#include "schedule.h"

namespace fastreduce {

// From here on the copy engine beats a kernel's peer reads and leaves the multiprocessors free;
// below, one launch for all rows beats a call for each. Predicted, not yet measured.
constexpr int64_t kCopyEngineBytes = 1 << 20;

// Where the ranks live. A lane is what executes in order: a device, or, to exercise the events
// engine on fewer devices, each rank for itself.
struct Placement {
  std::vector<int> device_of_rank;
  std::vector<cudaStream_t> current;  // by rank: the stream that torch would use on its device
  bool lane_per_rank = false;
  int slices = 0;  // pieces of a shard in flight; 0 chooses by size
  int64_t copy_engine_bytes = kCopyEngineBytes;
};

// All ranks on one GPU: every tile passes the whole program, one launch on the current stream.
void run_tiles_cuda(const Schedule& schedule, const std::vector<Table>& tables, int device, cudaStream_t stream);

// Several GPUs: each lane executes its ranks' instructions on a stream of its own, in program
// order, and waits by events for what other lanes did. No kernel ever waits.
void run_events(const Schedule& schedule, const std::vector<Table>& tables, const Placement& placement);

}  // namespace fastreduce
