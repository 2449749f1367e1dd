// How torch 2.11 (c10/cuda/impl/CUDAGuardImpl.h) makes devices current for events: those that record, wait or destroy
// one make the device from before current again, which makes a context there. Its guards make none.
#pragma once

#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "cuda/raii.h"

namespace processes_test {

class VirtualGuard final : public c10::impl::DeviceGuardImplInterface {
 public:
  using Device = c10::Device;
  using Stream = c10::Stream;

  c10::DeviceType type() const override { return c10::kCUDA; }
  c10::DeviceIndex deviceCount() const noexcept override { return 2; }
  Device getDevice() const override {
    c10::DeviceIndex device = 0;
    c10::cuda::GetDevice(&device);
    return {c10::kCUDA, device};
  }
  void setDevice(Device device) const override { c10::cuda::SetDevice(device.index()); }
  void uncheckedSetDevice(Device device) const noexcept override { c10::cuda::MaybeSetDevice(device.index()); }
  Device exchangeDevice(Device device) const override {
    const Device before = getDevice();
    setDevice(device);
    return before;
  }

  Stream getStream(Device device) const override {
    return named(device, c10::cuda::getCurrentCUDAStream(device.index()));
  }
  Stream exchangeStream(Stream stream) const override {
    const Stream before = getStream(stream.device());
    c10::cuda::current_streams[stream.device_index()] = handle(stream);
    return before;
  }
  // Never destroyed, as those of torch's pools.
  Stream getStreamFromGlobalPool(Device device, bool) const override {
    const c10::cuda::CUDAGuard guard(device);
    auto* const made = new fastreduce::Stream(fastreduce::make_stream());
    return named(device, made->get());
  }

  void record(void** event, const Stream& stream, const c10::DeviceIndex, const c10::EventFlag) const override {
    const Device before = getDevice();
    setDevice(stream.device());
    cudaEvent_t made = static_cast<cudaEvent_t>(*event);
    if (!made) fastreduce::cuda_check(cudaEventCreateWithFlags(&made, cudaEventDisableTiming), "create");
    fastreduce::cuda_check(cudaEventRecord(made, handle(stream)), "record");
    *event = made;
    setDevice(before);
  }
  void block(void* event, const Stream& stream) const override {
    const Device before = getDevice();
    setDevice(stream.device());
    fastreduce::cuda_check(cudaStreamWaitEvent(handle(stream), static_cast<cudaEvent_t>(event), 0), "block");
    setDevice(before);
  }
  void destroyEvent(void* event, const c10::DeviceIndex device) const noexcept override {
    const Device before = getDevice();
    setDevice({c10::kCUDA, device});
    if (event) cudaEventDestroy(static_cast<cudaEvent_t>(event));
    setDevice(before);
  }

 private:
  static cudaStream_t handle(const Stream& stream) { return reinterpret_cast<cudaStream_t>(stream.id()); }
  static Stream named(Device device, cudaStream_t stream) {
    return Stream(Stream::UNSAFE, device, reinterpret_cast<c10::StreamId>(stream));
  }
};

C10_REGISTER_GUARD_IMPL(CUDA, VirtualGuard)

}  // namespace processes_test
