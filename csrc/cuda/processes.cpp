// Connects the groups of processes to CUDA. Only the CUDA build has this file.
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <memory>
#include <stdexcept>

#include "cuda/ipc.h"
#include "cuda/raii.h"
#include "processes/heap.h"

namespace fastreduce {
namespace {

c10::Device gpu(int device) { return {c10::kCUDA, static_cast<c10::DeviceIndex>(device)}; }

cudaStream_t current_stream(int device) {
  const c10::cuda::CUDAGuard guard(gpu(device));
  const cudaStream_t stream = c10::cuda::getCurrentCUDAStream(static_cast<c10::DeviceIndex>(device));
  if (capture_of(device, stream))
    throw std::runtime_error(
        "fastreduce: a CUDA graph is being captured, and processes meet anew in each call; make the call outside of "
        "the graph");
  return stream;
}

struct CallsOn {
  explicit CallsOn(int device) : guard(gpu(device)) {}
  c10::cuda::CUDAGuard guard;
  RelaxedCapture relaxed;
};

std::shared_ptr<void> calls_on(int device) { return std::make_shared<CallsOn>(device); }

void refuse_a_captured_stream(int device) { current_stream(device); }

// Memory that stays pageable is right too, and slower. Any thread may ask for memory, also beside one that captures, or
// one on whose current GPU this process has nothing: there CUDA would make a context, of hundreds of MB.
void pin(std::byte* data, size_t bytes) {
  const c10::cuda::OptionalCUDAGuard guard(c10::cuda::getDeviceIndexWithPrimaryContext());
  const RelaxedCapture relaxed;
  if (cudaHostRegister(data, bytes, cudaHostRegisterPortable) != cudaSuccess) cudaGetLastError();
}

std::shared_ptr<void> relaxed_capture() { return std::make_shared<RelaxedCapture>(); }

[[maybe_unused]] const bool connected =
    (make_device_staging = [](int device, int rank, int ranks) -> std::unique_ptr<DeviceStaging> {
  current_stream(device);  // throws before anything is allocated
  return std::make_unique<IpcStaging>(device, rank, ranks, IpcStaging::Torch{current_stream, calls_on});
}, refuse_captures = refuse_a_captured_stream, pin_memory = pin, beside_captures = relaxed_capture, true);

}  // namespace
}  // namespace fastreduce
