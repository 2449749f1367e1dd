// torch's guard as tests see it: which devices it was put around.
#pragma once

#include <c10/core/Device.h>

#include <vector>

namespace c10::cuda {

inline std::vector<int> guarded_devices;

struct CUDAGuard {
  explicit CUDAGuard(Device device) { guarded_devices.push_back(device.index()); }
};

}  // namespace c10::cuda
