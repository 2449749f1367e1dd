#pragma once

#include <functional>

#include "rows.h"
#include "schedule.h"

namespace fastreduce {

// Calls body(begin, end) over a partition of [0, tasks), on as many threads as it likes.
using ParallelFor = std::function<void(int64_t tasks, const std::function<void(int64_t, int64_t)>& body)>;

// For ranks that share one memory: each worker takes one tile of the buffers through the whole
// schedule, in order. Tiles are independent, so there are no flags and no waits, and a tile stays in
// cache from its first instruction to its last. Leaves the result in the table's buffers.
void run_tiles(const Schedule& schedule, const Table& table, const ParallelFor& parallel_for);

}  // namespace fastreduce
