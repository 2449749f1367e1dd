#include "cuda/ipc.h"

#include <cstring>
#include <mutex>

#include "cuda/raii.h"

namespace fastreduce {
namespace {

constexpr int64_t kOwnBytes = kSlots * kDeviceSliceBytes;

std::string words(const char* call, cudaError_t status) {
  cudaGetLastError();  // also kept as "last error", where it would be blamed on a later launch
  return std::string(call) + ": " + cudaGetErrorName(status) + " (" + cudaGetErrorString(status) + ")";
}

// Memory of groups that have ended, by device. CUDA does not say what becomes of memory that is freed while a peer has
// it open, so it is kept for later groups until the process ends.
class Kept {
 public:
  static Kept& instance() {
    static Kept* kept = new Kept;  // never destroyed: the driver may have ended before
    return *kept;
  }

  // Of the current device; none, and why, if it has not so much left.
  DeviceMemory take(int device, std::string& problem) {
    {
      const std::lock_guard lock(mutex_);
      if (auto& kept = by_device_[device]; !kept.empty()) {
        DeviceMemory memory = std::move(kept.back());
        kept.pop_back();
        return memory;
      }
    }
    void* memory = nullptr;
    const cudaError_t status = cudaMalloc(&memory, kOwnBytes);
    if (status != cudaSuccess) problem = words("cudaMalloc", status);
    return DeviceMemory(memory);
  }

  void give_back(int device, DeviceMemory memory) {
    const std::lock_guard lock(mutex_);
    by_device_[device].push_back(std::move(memory));
  }

  void forget(DeviceMemory memory) {
    const std::lock_guard lock(mutex_);
    lost_.push_back(std::move(memory));
  }

 private:
  std::mutex mutex_;
  std::map<int, std::vector<DeviceMemory>> by_device_;
  std::vector<DeviceMemory> lost_;
};

}  // namespace

// All on one stream: a flush ends a launch, and launches come one after the other.
class IpcStaging::OnStream final : public Executor {
 public:
  OnStream(const IpcStaging& staging, const FlagsCall& call, cudaStream_t stream)
      : staging_(staging),
        ranks_(call.plan.schedule->ranks),
        buffers_(call.plan.schedule->buffers),
        stream_(stream),
        line_(staging.device_, stream),
        launcher_(call.dtype, call.op, call.elem_bytes, line_) {}

  int64_t staging_bytes() const override { return kOwnBytes; }
  int64_t slice_bytes() const override { return kDeviceSliceBytes; }
  std::byte* staging(int rank) const override { return staging_.stagings_[rank]; }

  void copy(std::byte* to, const std::byte* from, int64_t elems) override {
    std::byte* const pointers[] = {const_cast<std::byte*>(from), to};
    launcher_.add(copies_, ranks_, pointers, 2, elems);
  }

  void execute(const Instruction& instruction, std::byte* const* pointers, int64_t elems) override {
    if (only_.front() != &instruction) flush();  // the launcher knows lists by their addresses
    only_.front() = &instruction;
    launcher_.add(only_, ranks_, pointers, buffers_, elems);
  }

  void flush() override { launcher_.flush(); }

  bool idle() override {
    const DeviceGuard guard(staging_.device_);
    const cudaError_t status = cudaStreamQuery(stream_);
    if (status != cudaErrorNotReady) cuda_check(status, "cudaStreamQuery");
    return status == cudaSuccess;
  }

 private:
  const IpcStaging& staging_;
  const int ranks_;
  const int buffers_;
  const cudaStream_t stream_;
  const Instruction copy_{0, 0, {0}, {1}, false};
  const std::vector<const Instruction*> copies_{&copy_};
  std::vector<const Instruction*> only_{nullptr};
  Line line_;
  Launcher launcher_;
};

IpcStaging::IpcStaging(int device, int rank, int ranks, CurrentStream current_stream)
    : device_(device), rank_(rank), current_stream_(current_stream), stagings_(ranks) {
  const DeviceGuard guard(device);
  DeviceMemory memory = Kept::instance().take(device, problem_);
  if (memory.get() == nullptr) return;
  cudaIpcMemHandle_t handle;
  static_assert(sizeof(handle) == sizeof(handle_));
  if (const cudaError_t status = cudaIpcGetMemHandle(&handle, memory.get()); status != cudaSuccess) {
    problem_ = words("cudaIpcGetMemHandle", status);
    return;
  }
  std::memcpy(&handle_, &handle, sizeof(handle));
  own_ = std::move(memory);
  stagings_[rank] = static_cast<std::byte*>(own_.get());
}

IpcStaging::~IpcStaging() {
  int before = 0;
  if (cudaGetDevice(&before) == cudaSuccess && cudaSetDevice(device_) == cudaSuccess) {
    for (const auto& [handle, memory] : opened_) cudaIpcCloseMemHandle(memory);
    cudaSetDevice(before);
  }
  if (own_.get() == nullptr) return;
  if (abandoned_)
    Kept::instance().forget(std::move(own_));
  else
    Kept::instance().give_back(device_, std::move(own_));
}

bool IpcStaging::open(const std::vector<DeviceHandle>& handles) {
  const DeviceGuard guard(device_);
  for (size_t rank = 0; rank < handles.size(); ++rank) {
    if (static_cast<int>(rank) == rank_) continue;
    std::byte*& memory = opened_[handles[rank]];
    if (memory == nullptr) {
      cudaIpcMemHandle_t handle;
      std::memcpy(&handle, &handles[rank], sizeof(handle));
      void* found = nullptr;
      if (const cudaError_t status = cudaIpcOpenMemHandle(&found, handle, cudaIpcMemLazyEnablePeerAccess);
          status != cudaSuccess) {
        problem_ = words("cudaIpcOpenMemHandle", status);
        opened_.erase(handles[rank]);
        return false;
      }
      memory = static_cast<std::byte*>(found);
    }
    stagings_[rank] = memory;
  }
  return true;
}

std::unique_ptr<Executor> IpcStaging::executor(const FlagsCall& call) {
  return std::make_unique<OnStream>(*this, call, current_stream_(device_));
}

}  // namespace fastreduce
