#include "cuda/lanes.h"

namespace fastreduce {

HostMemory allocate_host(int64_t bytes) {
  void* memory;
  cuda_check(cudaHostAlloc(&memory, bytes, cudaHostAllocPortable), "cudaHostAlloc");
  return HostMemory(memory);
}

DeviceMemory allocate_device(int device, int64_t bytes) {
  const DeviceGuard guard(device);
  void* memory;
  cuda_check(cudaMalloc(&memory, bytes), "cudaMalloc");
  return DeviceMemory(memory);
}

HostStage::Side& HostStage::side(int device) {
  const auto found = sides_.find(device);
  if (found != sides_.end()) return found->second;
  const DeviceGuard guard(device);
  return sides_.emplace(device, Side{make_stream(), {}}).first->second;
}

void HostStage::copy(Line& line, const std::vector<Transfer>& transfers, int64_t bytes) {
  if (transfers.empty()) return;
  for (HostMemory& half : memory_)
    if (!half.get()) half = allocate_host(kStageBytes);
  line.record(begun_);
  std::map<int, Line> lines;  // by the device of the memory
  const auto line_on = [&](int device) -> Line& {
    const auto found = lines.find(device);
    if (found != lines.end()) return found->second;
    Line& made = lines.emplace(device, line.beside(device, side(device).stream.get())).first->second;
    made.wait(begun_);
    return made;
  };
  const Mark* emptied[2] = {};  // by half: after this it may be filled again
  for (size_t i = 0; i < transfers.size(); ++i) {
    const auto& [dst, dst_device, src, src_device] = transfers[i];
    const size_t half = i % 2;
    Line &down = line_on(src_device), &up = line_on(dst_device);
    Mark &filled = side(src_device).copied[half], &arrived = side(dst_device).copied[half];
    if (emptied[half]) down.wait(*emptied[half]);
    down.copy(memory_[half].get(), src, bytes, cudaMemcpyDeviceToHost);
    down.record(filled);
    up.wait(filled);
    up.copy(dst, memory_[half].get(), bytes, cudaMemcpyHostToDevice);
    up.record(arrived);
    line.wait(arrived);
    emptied[half] = &arrived;
  }
}

void HostStage::synchronize() {
  for (auto& [device, side] : sides_) cudaStreamSynchronize(side.stream.get());
}

Lane::Lane(int device) : device(device) {
  const DeviceGuard guard(device);
  stream = make_stream();
  joined = make_event();
}

Mark& Lane::mark(size_t n) {
  if (n >= marks_.size()) marks_.resize(n + 1);
  return marks_[n];
}

std::byte* Lane::scratch(int stages) {
  if (stages > scratch_stages_) {
    scratch_.push_back(allocate_device(device, stages * kStageBytes));
    scratch_stages_ = stages;
  }
  return static_cast<std::byte*>(scratch_.back().get());
}

void Lane::synchronize() {
  cudaStreamSynchronize(stream.get());
  stage.synchronize();
}

}  // namespace fastreduce
