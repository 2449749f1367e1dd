// Tensors on GPUs: on which stream a call works, and the memory by which GPUs reach each other across processes.
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
  // Its staging memory is zeros if peers cannot open it.
  virtual DeviceAddress address() const = 0;
  // By rank. Returns whether this GPU reaches all of them.
  virtual bool open(const std::vector<DeviceAddress>& addresses) = 0;
  // Why not.
  virtual std::string problem() const = 0;
  // Works on the GPU's current stream.
  virtual std::unique_ptr<Executor> executor(const FlagsCall& call) = 0;
  // After this the memory is not used again by later groups: a peer may still be at it. Nothing that was enqueued waits
  // for a peer any more.
  virtual void abandon() = 0;
};

// Set by builds with CUDA, while the extension is loaded.
using MakeDeviceStaging = std::unique_ptr<DeviceStaging> (*)(int device, int rank, int ranks);
extern MakeDeviceStaging make_device_staging;

// Whether groups made from now on try to share memory of GPUs. Tests turn it off, alike on all ranks.
extern bool share_device_memory;

// Whether kernels wait for peers on the same GPU too. It lets them run in turns, each for some milliseconds. Tests turn
// it on, alike on all ranks.
extern bool wait_on_shared_gpus;

// While what it returns lives, nothing that this thread does breaks the capture of a CUDA graph in another thread. Set
// by builds with CUDA.
extern std::shared_ptr<void> (*beside_captures)();

// All GPUs that one rank of a group has tensors on.
class DeviceGroup {
 public:
  explicit DeviceGroup(Group& group) : group_(group) {}

  // Whether peers reach each other's GPUs, as far as is known: the same on all ranks.
  bool reach() const { return reach_; }
  // Does the call where the tensors are. False, on all ranks, if that is not to be had: nothing was written.
  bool run(FlagsCall& call, c10::Device device);

 private:
  bool joined(DeviceStaging& staging);

  Group& group_;
  std::map<c10::DeviceIndex, std::unique_ptr<DeviceStaging>> stagings_;
  std::vector<DeviceAddress> known_;  // what all ranks have announced and opened
  bool reach_ = make_device_staging != nullptr && share_device_memory;
};

// The stream of one call on a GPU. Calls that return before they are done have one that other work does not use, so
// that they overlap with what the caller enqueues meanwhile.
class CallStream {
 public:
  CallStream(c10::Device device, bool waits);
  // In the thread that does the call: a stream that comes after what was enqueued when the call was made.
  const c10::Stream& begin();
  const c10::Stream& stream() const { return stream_; }

 private:
  c10::Stream stream_;
  std::optional<c10::Event> before_;
};

}  // namespace fastreduce
