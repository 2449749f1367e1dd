#pragma once

#include <functional>

#include "rows.h"
#include "schedule.h"

namespace fastreduce {

// Divides [0, tasks) into ranges and calls body(begin, end) for each, on any number of threads.
using ParallelFor = std::function<void(int64_t tasks, const std::function<void(int64_t, int64_t)>& body)>;

// For ranks that share one memory: each worker takes one tile of the buffers through the whole schedule, in order.
// Tiles are independent, so nothing waits, and a tile stays in cache from its first instruction to its last. The
// results are left in the table's buffers.
void run_tiles(const Schedule& schedule, const Table& table, const ParallelFor& parallel_for);

}  // namespace fastreduce
