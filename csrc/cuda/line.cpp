#include "cuda/line.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <stdexcept>
#include <utility>

#include "cuda/call_graph.h"

namespace fastreduce {
namespace {

using LaunchFunction = CUresult (*)(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                                    CUstream, void**, void**);

// The driver's own launch, because the runtime's always passes as many bytes as the kernel declares. Asked for by name,
// so that the extension can be imported where there is no driver.
LaunchFunction driver_launch() {
  static const auto found = [] {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult result;
#if CUDART_VERSION >= 12050
    const cudaError_t status = cudaGetDriverEntryPointByVersion("cuLaunchKernel", &function, 12000, 0, &result);
#else
    const cudaError_t status = cudaGetDriverEntryPoint("cuLaunchKernel", &function, cudaEnableDefault, &result);
#endif
    cuda_check(status, "cudaGetDriverEntryPoint");
    if (!function)
      throw std::runtime_error("fastreduce: the CUDA driver has no cuLaunchKernel; want driver 525 or later");
    return reinterpret_cast<LaunchFunction>(function);
  }();
  return found;
}

// The kernel as loaded on a device, found once.
CUfunction loaded(const void* kernel, int device) {
  static std::mutex mutex;
  static std::map<std::pair<const void*, int>, cudaFunction_t> known;
  std::lock_guard lock(mutex);
  cudaFunction_t& function = known[{kernel, device}];
  if (!function) {
    const RelaxedCapture relaxed;  // the kernel may be loaded only now
    cuda_check(cudaGetFuncBySymbol(&function, kernel), "cudaGetFuncBySymbol");
  }
  return function;
}

}  // namespace

Line Line::beside(int device, cudaStream_t stream) const {
  return graph_ ? Line(device, *graph_) : Line(device, stream);
}

void Line::launch(const KernelLaunch& launch) {
  const DeviceGuard guard(device_);
  if (graph_) {
    last_ = {graph_->launch(last_, launch)};
    return;
  }
  KernelBuffer buffer(launch);
  const CUfunction function = loaded(launch.kernel, device_);
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
