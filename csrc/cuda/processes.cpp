// Connects the groups of processes to CUDA. Only the CUDA build has this file.
#include <c10/cuda/CUDAStream.h>

#include "cuda/ipc.h"

namespace fastreduce {
namespace {

cudaStream_t current_stream(int device) {
  return c10::cuda::getCurrentCUDAStream(static_cast<c10::DeviceIndex>(device));
}

[[maybe_unused]] const bool connected =
    (make_device_staging = [](int device, int rank, int ranks) -> std::unique_ptr<DeviceStaging> {
      return std::make_unique<IpcStaging>(device, rank, ranks, current_stream);
    },
     true);

}  // namespace
}  // namespace fastreduce
