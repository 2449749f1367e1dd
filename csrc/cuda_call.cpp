// From torch's tensors and streams to the CUDA engines. Only the CUDA build has this file.
#include <ATen/cuda/PeerToPeerAccess.h>
#include <c10/cuda/CUDAStream.h>

#include <algorithm>

#include "call.h"
#include "cuda_engines.h"
#include "peers.h"

namespace fastreduce {
namespace {

Placement placement_of(const Call& call) {
  Placement placement;
  for (int64_t rank = 0; rank < call.ranks(); ++rank) {
    const c10::DeviceIndex device = call.outputs.at(rank, 0).device().index();
    placement.device_of_rank.push_back(device);
    placement.current.push_back(c10::cuda::getCurrentCUDAStream(device));
  }
  return placement;
}

template <class Holds>
bool all_pairs(const std::vector<int>& devices, const Holds& holds) {
  for (int device : devices)
    for (int other : devices)
      if (device != other && !holds(device, other)) return false;
  return true;
}

void run(const Call& call, const Program& program, const std::vector<Table>& tables) {
  if (tables.empty()) return;
  const Placement placement = placement_of(call);
  const int first = placement.device_of_rank.front();
  if (std::all_of(placement.device_of_rank.begin(), placement.device_of_rank.end(),
                  [&](int device) { return device == first; }))
    return run_tiles_cuda(program, tables, first, placement.current.front());
  prove_peers(placement.device_of_rank, placement.current);
  // torch's helper also covers memory of its expandable segments, which peer access alone does not.
  all_pairs(placement.device_of_rank, [](int device, int other) {
    if (can_reach(device, other))
      at::cuda::get_p2p_access(static_cast<c10::DeviceIndex>(device), static_cast<c10::DeviceIndex>(other));
    return true;
  });
  run_events(program, tables, placement);
}

// Predicted, until several GPUs have measured it: up to 64 KiB the events between devices cost more
// than the bytes, and leader has the fewest; above, sharded spreads the bytes over all links where
// every pair can reach each other; else ring uses neighbours only.
constexpr int64_t kLeaderBytes = 64 * 1024;

const char* choose(const Call& call) {
  const auto on_cuda = [](const at::Tensor& tensor) { return tensor.is_cuda(); };
  if (!std::all_of(call.outputs.flat.begin(), call.outputs.flat.end(), on_cuda)) return "leader";  // refused later
  const Placement placement = placement_of(call);
  int64_t bytes = 0;
  for (int64_t i = 0; i < call.outputs.per_rank; ++i) bytes += static_cast<int64_t>(call.outputs.at(0, i).nbytes());
  const bool one_device = all_pairs(placement.device_of_rank, [](int, int) { return false; });
  if (one_device || bytes <= kLeaderBytes) return "leader";
  prove_peers(placement.device_of_rank, placement.current);
  return all_pairs(placement.device_of_rank, can_reach) ? "sharded" : "ring";
}

constexpr CudaBackend backend{run, choose, keep_proofs_in};
[[maybe_unused]] const bool registered = (cuda_backend = &backend, true);

}  // namespace
}  // namespace fastreduce
