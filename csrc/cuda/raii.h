// Checks of CUDA calls, and owners of CUDA objects.
#pragma once

#include <cuda.h>
#include <cuda_runtime.h>

#include <optional>
#include <stdexcept>
#include <string>
#include <utility>

namespace fastreduce {

// The message names the call that returned the error. Asynchronous errors are returned by a later call.
inline void cuda_check(cudaError_t status, const char* call) {
  if (status == cudaSuccess) return;
  cudaGetLastError();  // also kept as "last error", where it would be blamed on a later launch
  throw std::runtime_error(std::string("fastreduce: ") + call + " failed: " + cudaGetErrorName(status) + " (" +
                           cudaGetErrorString(status) + ")");
}

inline void driver_check(CUresult status, const char* call) { cuda_check(static_cast<cudaError_t>(status), call); }

class DeviceGuard {
 public:
  explicit DeviceGuard(int device) : device_(device) {
    cuda_check(cudaGetDevice(&before_), "cudaGetDevice");
    if (device_ != before_) cuda_check(cudaSetDevice(device_), "cudaSetDevice");
  }
  ~DeviceGuard() {
    if (device_ != before_) cudaSetDevice(before_);
  }
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;

 private:
  int device_;
  int before_ = 0;
};

// A handle that is destroyed by `Destroy`; moved, not copied.
template <class Handle, cudaError_t (*Destroy)(Handle)>
class Owned {
 public:
  Owned() = default;
  explicit Owned(Handle handle) : handle_(handle) {}
  Owned(Owned&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  Owned& operator=(Owned&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~Owned() {
    if (handle_) Destroy(handle_);
  }
  Handle get() const { return handle_; }

 private:
  Handle handle_ = nullptr;
};

using Stream = Owned<cudaStream_t, cudaStreamDestroy>;
using Event = Owned<cudaEvent_t, cudaEventDestroy>;
using Graph = Owned<cudaGraph_t, cudaGraphDestroy>;
using GraphExec = Owned<cudaGraphExec_t, cudaGraphExecDestroy>;

inline Stream make_stream() {
  cudaStream_t stream;
  cuda_check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
  return Stream(stream);
}

inline Event make_event() {
  cudaEvent_t event;
  cuda_check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "cudaEventCreateWithFlags");
  return Event(event);
}

// Whether all work on the stream is done. CUDA's programming guide says that "not ready" is not kept as the last
// error, but there are versions that keep it (pytorch#18584), and a later launch would be blamed for it.
inline bool is_done(cudaStream_t stream) {
  const cudaError_t status = cudaStreamQuery(stream);
  if (status == cudaErrorNotReady) {
    cudaGetLastError();
    return false;
  }
  cuda_check(status, "cudaStreamQuery");
  return true;
}

struct Capture {
  unsigned long long id;
  cudaGraph_t graph;
  bool operator==(const Capture& other) const { return id == other.id; }
};

// Which capture a stream of this device is part of, if any. The default stream is named by the current device: where
// that is another one, it may be one that CUDA refuses to tell of, beside a blocking stream that is captured.
inline std::optional<Capture> capture_of(int device, cudaStream_t stream) {
  const DeviceGuard guard(device);
  cudaStreamCaptureStatus status;
  Capture capture{};
#if CUDART_VERSION >= 13000
  cuda_check(cudaStreamGetCaptureInfo(stream, &status, &capture.id, &capture.graph), "cudaStreamGetCaptureInfo");
#else
  cuda_check(cudaStreamGetCaptureInfo_v2(stream, &status, &capture.id, &capture.graph), "cudaStreamGetCaptureInfo_v2");
#endif
  if (status == cudaStreamCaptureStatusInvalidated)
    cuda_check(cudaErrorStreamCaptureInvalidated, "the capture of a current stream");
  return status == cudaStreamCaptureStatusNone ? std::nullopt : std::optional(capture);
}

// A capture may forbid allocations and similar calls in this thread or in all threads. Ours do not use a captured
// stream, so this allows them.
class RelaxedCapture {
 public:
  RelaxedCapture() { cuda_check(cudaThreadExchangeStreamCaptureMode(&mode_), "cudaThreadExchangeStreamCaptureMode"); }
  ~RelaxedCapture() { cudaThreadExchangeStreamCaptureMode(&mode_); }
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;

 private:
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

}  // namespace fastreduce
