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
  return sides_.emplace(device, Side{make_stream(), {make_event(), make_event()}}).first->second;
}

void HostStage::begin(int device, cudaStream_t stream) {
  if (!order_.get()) {
    const DeviceGuard guard(device);
    for (HostMemory& half : memory_) half = allocate_host(kStageBytes);
    order_ = make_event();  // the last: that it is there says that all is
  }
  stream_ = stream;
  emptied_[0] = emptied_[1] = nullptr;
  cuda_check(cudaEventRecord(order_.get(), stream), "cudaEventRecord");
}

void HostStage::copy(void* dst, int dst_device, const void* src, int src_device, int64_t bytes) {
  Side& down = side(src_device);
  Side& up = side(dst_device);
  const int half = next_;
  next_ = 1 - next_;
  for (Side* side : {&down, &up})
    cuda_check(cudaStreamWaitEvent(side->stream.get(), order_.get(), 0), "cudaStreamWaitEvent");
  if (emptied_[half]) cuda_check(cudaStreamWaitEvent(down.stream.get(), emptied_[half], 0), "cudaStreamWaitEvent");
  {
    const DeviceGuard guard(src_device);
    cuda_check(cudaMemcpyAsync(memory_[half].get(), src, bytes, cudaMemcpyDeviceToHost, down.stream.get()),
               "cudaMemcpyAsync to the host");
    cuda_check(cudaEventRecord(down.copied[half].get(), down.stream.get()), "cudaEventRecord");
  }
  const DeviceGuard guard(dst_device);
  cuda_check(cudaStreamWaitEvent(up.stream.get(), down.copied[half].get(), 0), "cudaStreamWaitEvent");
  cuda_check(cudaMemcpyAsync(dst, memory_[half].get(), bytes, cudaMemcpyHostToDevice, up.stream.get()),
             "cudaMemcpyAsync to the device");
  cuda_check(cudaEventRecord(up.copied[half].get(), up.stream.get()), "cudaEventRecord");
  emptied_[half] = up.copied[half].get();
  cuda_check(cudaStreamWaitEvent(stream_, up.copied[half].get(), 0), "cudaStreamWaitEvent");
}

void HostStage::synchronize() {
  for (auto& [device, side] : sides_) cudaStreamSynchronize(side.stream.get());
}

Lane::Lane(int device) : device(device) {
  const DeviceGuard guard(device);
  stream = make_stream();
  joined = make_event();
}

cudaEvent_t Lane::event(size_t n) {
  if (n >= events_.size()) {
    const DeviceGuard guard(device);
    while (n >= events_.size()) events_.push_back(make_event());
  }
  return events_[n].get();
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
