// torch's guards as tests see them: which devices this thread has put one around. Afterwards the device from before is
// current again if it has a context: as torch's, they make none.
#pragma once

#include <c10/core/Device.h>
#include <c10/cuda/CUDAFunctions.h>

#include <memory>
#include <optional>
#include <vector>

namespace c10::cuda {

inline thread_local std::vector<int> guarded_devices;

class CUDAGuard {
 public:
  explicit CUDAGuard(Device device) {
    guarded_devices.push_back(device.index());
    GetDevice(&before_);
    SetDevice(device.index());
  }
  CUDAGuard(const CUDAGuard&) = delete;
  ~CUDAGuard() { MaybeSetDevice(before_); }

 private:
  DeviceIndex before_ = 0;
};

class OptionalCUDAGuard {
 public:
  explicit OptionalCUDAGuard(std::optional<DeviceIndex> device)
      : guard_(device ? std::make_unique<CUDAGuard>(Device(kCUDA, *device)) : nullptr) {}

 private:
  std::unique_ptr<CUDAGuard> guard_;
};

}  // namespace c10::cuda
