// From torch's tensors and streams to the CUDA engines. Only the CUDA build has this file.
#include <ATen/cuda/PeerToPeerAccess.h>
#include <c10/cuda/CUDAStream.h>

#include <algorithm>
#include <atomic>

#include "call.h"
#include "cuda_engines.h"
#include "peers.h"

namespace fastreduce {
namespace {

std::atomic<bool> lane_per_rank{false};

std::vector<int> devices_of(const Call& call) {
  std::vector<int> devices;
  for (int64_t rank = 0; rank < call.ranks(); ++rank) devices.push_back(call.outputs.at(rank, 0).device().index());
  return devices;
}

template <class Holds>
bool all_pairs(const std::vector<int>& devices, const Holds& holds) {
  for (int device : devices)
    for (int other : devices)
      if (device != other && !holds(device, other)) return false;
  return true;
}

bool on_one_device(const std::vector<int>& devices) {
  return all_pairs(devices, [](int, int) { return false; });
}

void run(const Call& call, const Program& program, const std::vector<Table>& tables) {
  if (tables.empty()) return;
  Placement placement;
  placement.device_of_rank = devices_of(call);
  for (int device : placement.device_of_rank)
    placement.current.push_back(c10::cuda::getCurrentCUDAStream(static_cast<c10::DeviceIndex>(device)));
  placement.lane_per_rank = lane_per_rank;
  if (!placement.lane_per_rank && on_one_device(placement.device_of_rank))
    return run_tiles_cuda(program, tables, placement.device_of_rank.front(), placement.current.front());
  // torch's helper also covers memory of its expandable segments, which peer access alone does not.
  all_pairs(placement.device_of_rank, [](int device, int other) {
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
  const std::vector<int> devices = devices_of(call);
  int64_t bytes = 0;
  for (int64_t i = 0; i < call.outputs.per_rank; ++i) bytes += static_cast<int64_t>(call.outputs.at(0, i).nbytes());
  if (on_one_device(devices) || bytes <= kLeaderBytes) return "leader";
  return all_pairs(devices, can_reach) ? "sharded" : "ring";
}

constexpr CudaBackend backend{run, choose, [](bool on) { lane_per_rank = on; }};
[[maybe_unused]] const bool registered = (cuda_backend = &backend, true);

}  // namespace
}  // namespace fastreduce
