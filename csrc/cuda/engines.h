// The engines for CUDA memory. They know raw pointers, devices and streams, not torch.
#pragma once

#include <cuda_runtime.h>

#include <vector>

#include "copy_engine.h"
#include "rows.h"
#include "schedule.h"

namespace fastreduce {

// Where the ranks are. A lane executes in order: one per device, or one per rank to run the events engine on fewer
// devices.
struct Placement {
  std::vector<int> device_of_rank;
  std::vector<cudaStream_t> current;  // by rank: the stream that torch would use on its device
  bool lane_per_rank = false;
  bool by_flags = false;  // small calls take one launch per lane, which wait for each other (cuda/flags.h)
  int slices = 0;         // of a shard; 0 chooses by size
  CopyEngineBytes copy_engine_bytes;
};

// For ranks on one GPU: one launch on the current stream takes each tile through the whole program.
void run_tiles_cuda(const Schedule& schedule, const std::vector<Table>& tables, int device, cudaStream_t stream);

// For several GPUs: each lane executes its ranks' instructions on its own stream, in program order. Streams wait for
// other lanes by events; no kernel waits, unless the flags engine is asked for.
void run_events(const Schedule& schedule, const std::vector<Table>& tables, const Placement& placement);

}  // namespace fastreduce
