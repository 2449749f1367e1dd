// Memory of a GPU that other processes open by CUDA IPC. It knows raw pointers and streams, not torch.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "cuda/lanes.h"
#include "cuda/launch.h"
#include "processes/devices.h"

namespace fastreduce {

// What one rank stages at a time: large, because the CPU looks on between slices (predicted).
constexpr int64_t kDeviceSliceBytes = 16 << 20;

class IpcStaging final : public DeviceStaging {
 public:
  using CurrentStream = cudaStream_t (*)(int device);

  IpcStaging(int device, int rank, int ranks, CurrentStream current_stream);
  ~IpcStaging() override;

  DeviceHandle handle() const override { return handle_; }
  bool open(const std::vector<DeviceHandle>& handles) override;
  std::string problem() const override { return problem_; }
  std::unique_ptr<Executor> executor(const FlagsCall& call) override;
  void abandon() override { abandoned_ = true; }

 private:
  class OnStream;

  const int device_;
  const int rank_;
  const CurrentStream current_stream_;
  DeviceMemory own_;
  DeviceHandle handle_{};
  std::map<DeviceHandle, std::byte*> opened_;
  std::vector<std::byte*> stagings_;  // by rank
  std::string problem_;
  bool abandoned_ = false;
};

}  // namespace fastreduce
