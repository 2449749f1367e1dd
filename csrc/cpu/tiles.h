#pragma once

#include "schedule.h"

namespace fastreduce {

// Engine for ranks that share one memory: each worker takes one tile of the buffer through the
// whole program, in order. Tiles are independent, so there are no flags and no waits, and a tile
// stays in cache from its first instruction to its last. Leaves the result in the table's buffers.
void run_tiles(const Schedule& program, const Table& table, const ParallelFor& parallel_for);

}  // namespace fastreduce
