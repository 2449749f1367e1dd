#include "cuda/engines.h"
#include "cuda/launch.h"

namespace fastreduce {

void run_tiles_cuda(const Schedule& schedule, const std::vector<Table>& tables, int device, cudaStream_t stream) {
  for (const auto& instructions : schedule.by_shard) expect_fits(instructions, schedule.buffers);
  Line line(device, stream);
  for (const Table& table : tables) {
    Launcher launcher(table.dtype, table.op, table.elem_bytes, line);
    for (const Row& row : table.rows)
      launcher.add(schedule.by_shard[row.shard], schedule.ranks, table.pointers.data() + row.first_pointer,
                   schedule.buffers, row.elems);
    launcher.flush();
  }
}

}  // namespace fastreduce
