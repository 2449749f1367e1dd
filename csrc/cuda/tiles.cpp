#include "cuda/engines.h"
#include "cuda/launch.h"

namespace fastreduce {

void run_tiles_cuda(const Schedule& schedule, const std::vector<Table>& tables, int device, cudaStream_t stream) {
  for (const auto& instructions : schedule.by_shard) expect_fits(instructions);
  Line line(device, stream);
  launch_rows(schedule, tables, [&](const KernelLaunch& launch) { line.launch(launch); });
}

}  // namespace fastreduce
