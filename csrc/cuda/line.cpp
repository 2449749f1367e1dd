#include "cuda/line.h"

#include <algorithm>

#include "cuda/call_graph.h"

namespace fastreduce {

Line Line::beside(int device, cudaStream_t stream) const {
  return graph_ ? Line(device, *graph_) : Line(device, stream);
}

void Line::launch(const KernelLaunch& launch) {
  const DeviceGuard guard(device_);
  if (graph_) {
    last_ = {graph_->launch(last_, launch)};
    return;
  }
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(launch.blocks);
  config.blockDim = dim3(launch.threads);
  config.stream = stream_;
  void* parameters[] = {const_cast<void*>(launch.args)};
  cuda_check(cudaLaunchKernelExC(&config, launch.kernel, parameters), "kernel launch");
}

// Between devices, cudaMemcpyAsync does the same as cudaMemcpyPeerAsync if peer access is enabled, and can be captured.
void Line::copy(void* dst, const void* src, size_t bytes, cudaMemcpyKind kind) {
  const DeviceGuard guard(device_);
  if (graph_) {
    last_ = {graph_->copy(last_, dst, src, bytes, kind)};
    return;
  }
  cuda_check(cudaMemcpyAsync(dst, src, bytes, kind, stream_), "cudaMemcpyAsync");
}

void Line::record(Mark& mark) {
  if (graph_) {
    mark.nodes_ = last_;
    return;
  }
  if (!mark.event_.get()) {
    const DeviceGuard guard(device_);
    mark.event_ = make_event();
  }
  cuda_check(cudaEventRecord(mark.event_.get(), stream_), "cudaEventRecord");
}

// A node may not be named twice among those that another comes after.
void Line::wait(const Mark& mark) {
  if (!graph_) return cuda_check(cudaStreamWaitEvent(stream_, mark.event_.get(), 0), "cudaStreamWaitEvent");
  for (cudaGraphNode_t node : mark.nodes_)
    if (std::find(last_.begin(), last_.end(), node) == last_.end()) last_.push_back(node);
}

}  // namespace fastreduce
