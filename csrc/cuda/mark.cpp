#include "cuda/mark.h"

#include <chrono>
#include <cstring>
#include <thread>

#include "cuda/lanes.h"

namespace fastreduce {
namespace {

using Clock = std::chrono::steady_clock;

// A copy takes microseconds. Virtual GPUs under ThreadSanitizer take longest, as in processes/devices.cpp.
constexpr std::chrono::seconds kPatience{20};

struct Copies {
  explicit Copies(int device)
      : host(allocate_host(kMarkBytes)), memory(allocate_device(device, kMarkBytes)), stream(make_stream()) {}

  bool are_done() const {
    const Clock::time_point end = Clock::now() + kPatience;
    while (!is_done(stream.get())) {
      if (Clock::now() > end) return false;
      std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
    return true;
  }

  HostMemory host;
  DeviceMemory memory;
  Stream stream;
};

}  // namespace

void leave_mark(int device, std::byte* memory, int rank) {
  const DeviceGuard guard(device);
  KeptUnlessDone<Copies> copies(device);
  const cudaStream_t stream = copies->stream.get();
  std::memcpy(copies->host.get(), pattern(rank).data(), kMarkBytes);
  Line(device, stream).copy(memory, copies->host.get(), kMarkBytes, cudaMemcpyHostToDevice);
  cuda_check(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
  copies.done();
}

std::string problem_with_mark(int device, std::byte* memory, int rank) {
  const DeviceGuard guard(device);
  KeptUnlessDone<Copies> copies(device);
  const cudaStream_t stream = copies->stream.get();
  copy_by_kernel(device, stream, copies->memory.get(), memory, kMarkBytes);
  Line(device, stream).copy(copies->host.get(), copies->memory.get(), kMarkBytes, cudaMemcpyDeviceToHost);
  const std::string from = " the memory of rank " + std::to_string(rank) + "'s GPU";
  if (!copies->are_done()) return "a kernel that reads" + from + " does not end";
  const bool right = std::memcmp(copies->host.get(), pattern(rank).data(), kMarkBytes) == 0;
  copies.done();
  return right ? "" : "a kernel reads wrong data from" + from;
}

}  // namespace fastreduce
