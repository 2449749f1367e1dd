#include "cuda/line.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <utility>

#include "cuda/call_graph.h"
#include "cuda/driver.h"

namespace fastreduce {
namespace {

using LaunchFunction = CUresult (*)(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                                    CUstream, void**, void**);

// The driver's own launch, because the runtime's always passes as many bytes as the kernel declares.
LaunchFunction driver_launch() {
  static const auto found = driver_function<LaunchFunction>("cuLaunchKernel");
  return found;
}

// The kernel as loaded on a device, found once. Loading it may have to wait for what runs there, which may itself wait
// for a launch of another thread: so no thread keeps others out meanwhile.
CUfunction loaded(const void* kernel, int device) {
  static std::mutex mutex;
  static std::map<std::pair<const void*, int>, cudaFunction_t> known;
  {
    const std::lock_guard lock(mutex);
    if (const auto found = known.find({kernel, device}); found != known.end()) return found->second;
  }
  const RelaxedCapture relaxed;  // the kernel may be loaded only now
  cudaFunction_t function;
  cuda_check(cudaGetFuncBySymbol(&function, kernel), "cudaGetFuncBySymbol");
  const std::lock_guard lock(mutex);
  return known[{kernel, device}] = function;
}

}  // namespace

Line Line::beside(int device, cudaStream_t stream) const {
  return graph_ ? Line(device, *graph_) : Line(device, stream);
}

void Line::load(const void* kernel) const {
  const DeviceGuard guard(device_);
  loaded(kernel, device_);
}

void Line::launch(const KernelLaunch& launch) {
  const DeviceGuard guard(device_);
  if (graph_) {
    last_ = {graph_->launch(last_, launch)};
    return;
  }
  KernelBuffer buffer(launch);
  const CUfunction function = loaded(launch.kernel, device_);
  need_context();
  driver_check(driver_launch()(function, launch.blocks, 1, 1, launch.threads, 1, 1, 0, stream_, nullptr, buffer.extra),
               "cuLaunchKernel");
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
