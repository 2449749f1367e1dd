#pragma once

#include <set>
#include <utility>
#include <vector>

#include "rows.h"
#include "schedule.h"

namespace fastreduce {

// (device, buffer): the device cannot use some of the buffer's memory, although peer access is enabled.
using ClosedBuffers = std::set<std::pair<int, int>>;

// Peer access covers what cudaMalloc allocates. Memory of pools (cudaMallocAsync, CuPy) and memory that was mapped
// (cuMemMap) has access rights of its own, and a kernel without them ends the context. So each allocation of a call is
// looked at: pools are opened, and what stays closed is named here, to go through the host.
//
// Nothing is kept between calls, because an address that is freed may belong to another allocator in the next call. One
// question to the driver is asked for each allocation, and nothing more for that of cudaMalloc, in which torch has many
// tensors. Predicted: 0.2 us per question, so 2 us for 8 ranks whose gradients lie in one allocation each.
ClosedBuffers closed_buffers(const Schedule& schedule, const std::vector<Table>& tables,
                             const std::vector<int>& device_of_rank);

}  // namespace fastreduce
