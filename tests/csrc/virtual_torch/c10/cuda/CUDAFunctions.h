// Which GPUs have a context, as torch tells.
#pragma once

#include <c10/core/Device.h>
#include <cuda_runtime.h>

#include <optional>

namespace c10::cuda {

inline bool hasPrimaryContext(DeviceIndex device) { return virtual_cuda::contexts().contains(device); }

// The current device if it has one.
inline std::optional<DeviceIndex> getDeviceIndexWithPrimaryContext() {
  int current = 0;
  cudaGetDevice(&current);
  if (hasPrimaryContext(static_cast<DeviceIndex>(current))) return static_cast<DeviceIndex>(current);
  for (int device : virtual_cuda::contexts()) return static_cast<DeviceIndex>(device);
  return std::nullopt;
}

}  // namespace c10::cuda
