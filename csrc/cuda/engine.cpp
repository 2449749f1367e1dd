// Connects torch's devices and streams to the CUDA engines. Only the CUDA build has this file.
#include <ATen/cuda/PeerToPeerAccess.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <mutex>

#include "copy_engine.h"
#include "cuda/engines.h"
#include "cuda/peers.h"
#include "cuda/raii.h"
#include "engine.h"

namespace fastreduce {
namespace {

Placement placement_of(const Devices& devices) {
  Placement placement;
  placement.lane_per_rank = lane_per_rank;
  placement.copy_engine_bytes = {nvlink_copy_engine_bytes, pcie_copy_engine_bytes};
  for (const c10::Device& device : devices) {
    placement.device_of_rank.push_back(device.index());
    placement.current.push_back(c10::cuda::getCurrentCUDAStream(device.index()));
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

// torch's helper also gives access to memory in its expandable segments, which peer access alone does not.
void enable_in_torch(int device, int other) {
  at::cuda::get_p2p_access(static_cast<c10::DeviceIndex>(device), static_cast<c10::DeviceIndex>(other));
}

// Must come before the first question about a pair of devices, because the answer may be on disk.
void know_proofs() {
  static std::once_flag once;
  std::call_once(once, [] {
    const std::string folder = cache_folder();
    keep_proofs_in(folder.empty() ? "" : folder + "/peer_access.txt");
    when_reached(enable_in_torch);
  });
}

// The engines switch between devices and restore the current one. torch's guard is around them because a device that
// is current only by default may have no CUDA context yet, and only torch's guard does not create one.
class CudaEngine final : public Engine {
 public:
  const char* place(const Devices& devices) override {
    const c10::cuda::CUDAGuard guard(devices.front());
    const Placement placement = placement_of(devices);
    if (on_one_device(placement.device_of_rank)) return "gpu";
    know_proofs();
    prove_peers(placement.device_of_rank, placement.current);
    return all_pairs(placement.device_of_rank, has_nvlink) ? "nvlink" : "pcie";
  }

  void run(const Devices& devices, const Schedule& schedule, const std::vector<Table>& tables, bool by_flags) override {
    if (tables.empty()) return;
    const c10::cuda::CUDAGuard guard(devices.front());
    Placement placement = placement_of(devices);
    placement.by_flags = by_flags;
    if (!placement.lane_per_rank && on_one_device(placement.device_of_rank))
      return run_tiles_cuda(schedule, tables, placement.device_of_rank.front(), placement.current.front());
    know_proofs();
    run_events(schedule, tables, placement);
  }

  bool has_flags(const Devices& devices) override {
    const Placement placement = placement_of(devices);
    return placement.lane_per_rank || !on_one_device(placement.device_of_rank);
  }

  // For a captured graph, torch keeps only memory of the device on which the capture began.
  bool may_copy(const Devices& devices) override {
    const Placement placement = placement_of(devices);
    if (on_one_device(placement.device_of_rank)) return true;
    const c10::cuda::CUDAGuard guard(devices.front());
    return !any_captured(placement.device_of_rank, placement.current);
  }

  bool needs_alignment() override { return true; }
};

CudaEngine cuda_engine;
[[maybe_unused]] const bool cuda_registered = (register_engine(c10::kCUDA, cuda_engine), true);

}  // namespace
}  // namespace fastreduce
