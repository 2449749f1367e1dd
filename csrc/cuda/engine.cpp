// From torch's tensors and streams to the CUDA engines. Only the CUDA build has this file.
#include <ATen/cuda/PeerToPeerAccess.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <algorithm>
#include <atomic>

#include "call.h"
#include "cuda/engines.h"
#include "cuda/raii.h"
#include "cuda/peers.h"

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

// The engines go back to the device that they find current. torch's guard alone knows not to make a
// context on a device that is current and that nobody has used yet.
c10::cuda::CUDAGuard on_first_device(const Call& call) { return c10::cuda::CUDAGuard(call.outputs.at(0, 0).device()); }

// torch keeps for the graph what is allocated on the device where the capture began, and no other's.
bool may_copy(const Call& call) {
  const Placement placement = placement_of(call);
  if (on_one_device(placement.device_of_rank)) return true;
  const auto guard = on_first_device(call);
  return std::none_of(placement.current.begin(), placement.current.end(),
                      [](cudaStream_t stream) { return capture_of(stream).has_value(); });
}

void run(const Call& call, const Schedule& program, const std::vector<Table>& tables) {
  if (tables.empty()) return;
  const auto guard = on_first_device(call);
  const Placement placement = placement_of(call);
  if (!placement.lane_per_rank && on_one_device(placement.device_of_rank))
    return run_tiles_cuda(program, tables, placement.device_of_rank.front(), placement.current.front());
  run_events(program, tables, placement);
}

const char* place(const Call& call) {
  const auto on_cuda = [](const at::Tensor& tensor) { return tensor.is_cuda(); };
  if (!std::all_of(call.outputs.flat.begin(), call.outputs.flat.end(), on_cuda)) return "cpu";  // refused later
  const auto guard = on_first_device(call);
  const Placement placement = placement_of(call);
  if (on_one_device(placement.device_of_rank)) return "gpu";
  prove_peers(placement.device_of_rank, placement.current);
  return all_pairs(placement.device_of_rank, has_nvlink) ? "nvlink" : "pcie";
}

constexpr CudaBackend backend{run, place, may_copy, keep_proofs_in, [](bool on) { lane_per_rank = on; }};

// torch's helper also covers memory of its expandable segments, which peer access alone does not.
void enable_in_torch(int device, int other) {
  at::cuda::get_p2p_access(static_cast<c10::DeviceIndex>(device), static_cast<c10::DeviceIndex>(other));
}

[[maybe_unused]] const bool registered = (cuda_backend = &backend, when_reached(enable_in_torch), true);

}  // namespace
}  // namespace fastreduce
