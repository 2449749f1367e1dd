// Which GPUs have a context, and how torch makes one current: where it goes back to one without a context it only
// remembers that.
#pragma once

#include <c10/core/Device.h>
#include <cuda_runtime.h>

#include <optional>

namespace c10::cuda {

inline bool hasPrimaryContext(DeviceIndex device) { return virtual_cuda::contexts().contains(device); }

inline thread_local int remembered = -1;

inline cudaError_t GetDevice(DeviceIndex* device) {
  int current = remembered;
  if (current < 0) cudaGetDevice(&current);
  *device = static_cast<DeviceIndex>(current);
  return cudaSuccess;
}

inline cudaError_t SetDevice(DeviceIndex device) {
  remembered = -1;
  int current = 0;
  cudaGetDevice(&current);
  return current == device ? cudaSuccess : cudaSetDevice(device);
}

inline cudaError_t MaybeSetDevice(DeviceIndex device) {
  if (hasPrimaryContext(device)) return SetDevice(device);
  remembered = device;
  return cudaSuccess;
}

// The current device if it has one.
inline std::optional<DeviceIndex> getDeviceIndexWithPrimaryContext() {
  DeviceIndex current = 0;
  GetDevice(&current);
  if (hasPrimaryContext(current)) return current;
  for (int device : virtual_cuda::contexts()) return static_cast<DeviceIndex>(device);
  return std::nullopt;
}

}  // namespace c10::cuda
