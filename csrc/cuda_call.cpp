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

// Ranks of one GPU through the events engine, each on a stream of its own: to test and time that
// engine where there is one GPU.
std::atomic<bool> lane_per_rank{false};

Placement placement_of(const Call& call) {
  Placement placement;
  placement.lane_per_rank = lane_per_rank;
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

bool on_one_device(const std::vector<int>& devices) {
  return all_pairs(devices, [](int, int) { return false; });
}

void run(const Call& call, const Program& program, const std::vector<Table>& tables) {
  if (tables.empty()) return;
  const Placement placement = placement_of(call);
  if (!placement.lane_per_rank && on_one_device(placement.device_of_rank))
    return run_tiles_cuda(program, tables, placement.device_of_rank.front(), placement.current.front());
  prove_peers(placement.device_of_rank, placement.current);
  // torch's helper also covers memory of its expandable segments, which peer access alone does not.
  all_pairs(placement.device_of_rank, [](int device, int other) {
    if (can_reach(device, other))
      at::cuda::get_p2p_access(static_cast<c10::DeviceIndex>(device), static_cast<c10::DeviceIndex>(other));
    return true;
  });
  run_events(program, tables, placement);
}

const char* place(const Call& call) {
  const auto on_cuda = [](const at::Tensor& tensor) { return tensor.is_cuda(); };
  if (!std::all_of(call.outputs.flat.begin(), call.outputs.flat.end(), on_cuda)) return "cpu";  // refused later
  const Placement placement = placement_of(call);
  if (on_one_device(placement.device_of_rank)) return "gpu";
  prove_peers(placement.device_of_rank, placement.current);
  return all_pairs(placement.device_of_rank, has_nvlink) ? "nvlink" : "pcie";
}

constexpr CudaBackend backend{run, place, keep_proofs_in, [](bool on) { lane_per_rank = on; }};
[[maybe_unused]] const bool registered = (cuda_backend = &backend, true);

}  // namespace
}  // namespace fastreduce
