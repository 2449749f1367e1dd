// What the events engine keeps between calls: the streams, marks and host memory of each lane.
#pragma once

#include <map>
#include <memory>
#include <vector>

#include "cuda/line.h"

namespace fastreduce {

// Data passes through host memory in stages of at most this size, two at a time. Predicted: large enough for PCIe's
// full rate, small enough that copies to and from the host soon overlap.
constexpr int64_t kStageBytes = 4 << 20;

using HostMemory = Owned<void*, cudaFreeHost>;
using DeviceMemory = Owned<void*, cudaFree>;

HostMemory allocate_host(int64_t bytes);
DeviceMemory allocate_device(int device, int64_t bytes);

// Copies data between devices that cannot reach each other, for one lane. While one stage is copied from one half of
// the pinned memory to a device, the next is copied from a device to the other half. Copies run on streams of the
// device whose memory they use.
class HostStage {
 public:
  struct Transfer {
    void* dst;
    int dst_device;
    const void* src;
    int src_device;
  };
  // Copies `bytes` for each transfer, after the work that is on the line now, and before later work on it.
  void copy(Line& line, const std::vector<Transfer>& transfers, int64_t bytes);
  void synchronize();

 private:
  struct Side {
    Stream stream;
    Mark copied[2];
  };
  Side& side(int device);

  HostMemory memory_[2];
  std::map<int, Side> sides_;
  Mark begun_;
};

struct Lane {
  explicit Lane(int device);
  // The n-th mark of this lane, reused by every call.
  Mark& mark(size_t n);
  // Memory for `stages` stages on this lane's device.
  std::byte* scratch(int stages);
  void synchronize();

  int device;
  Stream stream;
  Event joined;
  HostStage stage;

 private:
  std::vector<Mark> marks_;
  std::vector<DeviceMemory> scratch_;  // outgrown memory stays: captured graphs still use it
  int scratch_stages_ = 0;
};

}  // namespace fastreduce
