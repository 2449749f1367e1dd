// Memory of a GPU that other processes open by CUDA IPC. It knows raw pointers and streams, not torch.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cuda/flags.h"
#include "cuda/lanes.h"
#include "cuda/launch.h"
#include "processes/devices.h"

namespace fastreduce {

// What one rank stages at a time: large, because the CPU looks on between slices (predicted).
constexpr int64_t kDeviceSliceBytes = 16 << 20;

// Calls of at most this many bytes from each rank are one launch: what its tiles hold at 4 KiB each (predicted: beyond
// that, the CPU's looks cost little beside the data).
constexpr int64_t kAtOnceBytes = kMaxSignalTiles * kThreads * kVectorBytes;

class IpcStaging final : public DeviceStaging {
 public:
  // What is asked of torch.
  struct Torch {
    cudaStream_t (*current_stream)(int device);
    // As long as the returned object lives, the device is current in this thread, and the thread's calls break no
    // capture of another one. It leaves no context on a GPU that had none.
    std::shared_ptr<void> (*calls_on)(int device);
  };

  IpcStaging(int device, int rank, int ranks, Torch torch);
  ~IpcStaging() override;

  DeviceAddress address() const override { return address_; }
  bool open(const std::vector<DeviceAddress>& addresses) override;
  std::string problem() const override { return problem_; }
  std::unique_ptr<Executor> executor(const FlagsCall& call) override;
  void abandon() override;

 private:
  class OnStream;

  // What kernels need that wait for those of all peers.
  struct AtOnce {
    LaneSignals signals;
    std::map<uint64_t, std::optional<Schedule>> schedules;  // with copies, by the number of the one without
  };

  bool open_all(const std::vector<DeviceAddress>& addresses);

  const int device_;
  const int rank_;
  const Torch torch_;
  DeviceMemory own_;
  DeviceAddress address_{};
  std::map<DeviceHandle, std::byte*> opened_;
  std::vector<std::byte*> stagings_;  // by rank
  std::unique_ptr<AtOnce> at_once_;   // nullptr if kernels must not wait for each other
  std::string problem_;
  bool abandoned_ = false;
};

}  // namespace fastreduce
