#include "cuda/mark.h"

#include <chrono>
#include <cstring>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "cuda/lanes.h"
#include "cuda/launch.h"

namespace fastreduce {
namespace {

using Clock = std::chrono::steady_clock;

// A copy takes microseconds. Virtual GPUs under ThreadSanitizer take longest, as in processes/devices.cpp.
constexpr std::chrono::seconds kPatience{20};

// Each value depends on its address and on the rank, so that memory of another place or rank shows.
std::vector<std::byte> mark_of(int rank) {
  std::vector<std::byte> bytes(kMarkBytes);
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>((i * 2654435761u + rank * 40503u) >> 11);
  return bytes;
}

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

// Freeing memory would wait for a copy that hangs.
void abandon(std::unique_ptr<Copies> copies) {
  static auto* const abandoned = new std::vector<std::unique_ptr<Copies>>;
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  abandoned->push_back(std::move(copies));
}

}  // namespace

void leave_mark(int device, std::byte* memory, int rank) {
  const DeviceGuard guard(device);
  const HostMemory host = allocate_host(kMarkBytes);
  const Stream stream = make_stream();
  std::memcpy(host.get(), mark_of(rank).data(), kMarkBytes);
  cuda_check(cudaMemcpyAsync(memory, host.get(), kMarkBytes, cudaMemcpyHostToDevice, stream.get()), "cudaMemcpyAsync");
  cuda_check(cudaStreamSynchronize(stream.get()), "cudaStreamSynchronize");
}

std::string problem_with_mark(int device, std::byte* memory, int rank) {
  const DeviceGuard guard(device);
  auto copies = std::make_unique<Copies>(device);
  const Instruction copy{0, 0, {0}, {1}, false};
  const std::vector<const Instruction*> instructions{&copy};
  std::byte* const pointers[] = {memory, static_cast<std::byte*>(copies->memory.get())};
  Line line(device, copies->stream.get());
  Launcher launcher(DType::u8, Op::sum, 1, line);
  launcher.add(instructions, 1, pointers, kMarkBytes);
  launcher.flush();
  line.copy(copies->host.get(), copies->memory.get(), kMarkBytes, cudaMemcpyDeviceToHost);
  const std::string from = " the memory of rank " + std::to_string(rank) + "'s GPU";
  if (!copies->are_done()) {
    abandon(std::move(copies));
    return "a kernel that reads" + from + " does not end";
  }
  const bool right = std::memcmp(copies->host.get(), mark_of(rank).data(), kMarkBytes) == 0;
  return right ? "" : "a kernel reads wrong data from" + from;
}

}  // namespace fastreduce
