// Tensors on GPUs: the stream on which a call works, and memory through which GPUs of several processes reach each
// other.
#pragma once

#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "processes/flags.h"

namespace fastreduce {

// One rank's staging memory on one of its GPUs, and that of its peers as this process sees it.
class DeviceStaging {
 public:
  virtual ~DeviceStaging() = default;
  // What peers need to open it. The handle is all zeros if they cannot.
  virtual DeviceAddress address() const = 0;
  // Opens the staging memory of all ranks, given by rank. Returns whether this GPU can reach all of it.
  virtual bool open(const std::vector<DeviceAddress>& addresses) = 0;
  // Why peers cannot open this memory, or this GPU cannot reach theirs; empty if nothing is wrong.
  virtual std::string problem() const = 0;
  // Works on the GPU's current stream.
  virtual std::unique_ptr<Executor> executor(const FlagsCall& call) = 0;
  // After a failure: no later group uses this memory, since a peer may still read or write it. What is enqueued waits
  // for no peer any more.
  virtual void abandon() = 0;
};

// Set by builds with CUDA, while the extension is loaded.
using MakeDeviceStaging = std::unique_ptr<DeviceStaging> (*)(int device, int rank, int ranks);
extern MakeDeviceStaging make_device_staging;

// Whether groups made from now on try to share memory of GPUs. Tests turn it off, alike on all ranks.
extern bool share_device_memory;

// Whether kernels may also wait for those of a process that uses the same GPU. Such a GPU runs one process at a time,
// for some milliseconds each, so that waiting takes long. Tests turn it on, alike on all ranks.
extern bool wait_on_shared_gpus;

// Throws if this thread's current stream of the GPU is captured into a CUDA graph. Set by builds with CUDA.
extern void (*refuse_captures)(int device);

// As long as the returned object lives, this thread's CUDA calls do not break the capture of a CUDA graph in another
// thread. Set by builds with CUDA.
extern std::shared_ptr<void> (*beside_captures)();

// The GPUs on which one rank of a group has tensors.
class DeviceGroup {
 public:
  explicit DeviceGroup(Group& group) : group_(group) {}

  // Whether the ranks' GPUs can reach each other, as far as is known yet. The same on all ranks.
  bool reach() const { return reach_; }
  // Does the call on the GPUs. Returns false on all ranks, and has written nothing, if the GPUs cannot reach each
  // other.
  bool run(FlagsCall& call, c10::Device device);

 private:
  bool joined(DeviceStaging& staging);

  Group& group_;
  std::map<c10::DeviceIndex, std::unique_ptr<DeviceStaging>> stagings_;
  std::vector<DeviceAddress> known_;  // what all ranks have announced and opened
  bool reach_ = make_device_staging != nullptr && share_device_memory;
};

// The stream of one call on a GPU. An asynchronous call has a stream of its own, so that it runs beside what the caller
// enqueues meanwhile. There is none where the caller's current stream is captured: the call would break the capture, by
// waiting for the GPU, or its own stream would become part of it.
class CallStream {
 public:
  CallStream(c10::Device device, bool waits);
  // In the thread that does the call: the stream, made to wait for all work that was enqueued when the call was made.
  // The GPU of an asynchronous call stays the current one of the thread, which is the queue's own.
  const c10::Stream& begin();
  const c10::Stream& stream() const { return stream_; }

 private:
  c10::Stream stream_;
  std::optional<c10::Event> before_;
};

}  // namespace fastreduce
