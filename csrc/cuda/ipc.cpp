#include "cuda/ipc.h"

#include <cstring>
#include <mutex>
#include <numeric>
#include <set>

#include "cuda/mark.h"
#include "cuda/raii.h"

namespace fastreduce {
namespace {

constexpr int64_t kOwnBytes = kSlots * kDeviceSliceBytes;

// Behind them are the signals of as many lanes at most.
constexpr size_t kMaxLanes = 64;

// And behind these the mark, which stays as it is.
constexpr int64_t kMarkAt = kOwnBytes + LaneSignals::bytes(kMaxLanes);

// The host ends waits, at the group's timeout at the latest.
constexpr uint32_t kNoLimit = UINT32_MAX;

// The PCI address of a GPU on which all blocks of any launch with signals run at the same time; empty for others.
std::array<char, 16> gpu_of(int device) {
  std::array<char, 16> address{};
  int processors;
  cuda_check(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device), "cudaDeviceGetAttribute");
  if (processors * kBlocksPerProcessor >= kMaxSignalTiles && !launches_block())
    cuda_check(cudaDeviceGetPCIBusId(address.data(), address.size(), device), "cudaDeviceGetPCIBusId");
  return address;
}

bool may_wait(const std::vector<DeviceAddress>& addresses) {
  std::set<std::array<char, 16>> gpus;
  for (const DeviceAddress& address : addresses) gpus.insert(address.gpu);
  return !gpus.contains({}) && addresses.size() <= kMaxLanes &&
         (gpus.size() == addresses.size() || wait_on_shared_gpus);
}

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
    const cudaError_t status = cudaMalloc(&memory, kMarkAt + kMarkBytes);
    if (status != cudaSuccess) problem = words("cudaMalloc", status);
    return DeviceMemory(memory);
  }

  void give_back(int device, DeviceMemory memory) {
    const std::lock_guard lock(mutex_);
    by_device_[device].push_back(std::move(memory));
  }

  void forget(DeviceMemory memory, LaneSignals signals) {
    const std::lock_guard lock(mutex_);
    lost_.emplace_back(std::move(memory), std::move(signals));
  }

 private:
  std::mutex mutex_;
  std::map<int, std::vector<DeviceMemory>> by_device_;
  std::vector<std::pair<DeviceMemory, LaneSignals>> lost_;
};

// One call at a time has kernels that wait on a GPU: of two, each might keep the place that the other needs there.
std::mutex& place_on(int device) {
  static std::array<std::mutex, 128> places;  // as many as a c10::DeviceIndex can name
  return places[device];
}

}  // namespace

// All on one stream: a flush ends a launch, and launches come one after the other.
class IpcStaging::OnStream final : public Executor {
 public:
  OnStream(const IpcStaging& staging, const FlagsCall& call, cudaStream_t stream)
      : staging_(staging),
        rank_schedule_(call.rank_schedule),
        ranks_(call.rank_schedule.schedule->ranks),
        stream_(stream),
        line_(staging.device_, stream),
        launcher_(call.dtype, call.op, call.elem_bytes, line_) {}

  int64_t staging_bytes() const override { return kOwnBytes; }
  int64_t slice_bytes() const override { return kDeviceSliceBytes; }
  std::byte* staging(int rank) const override { return staging_.stagings_[rank]; }

  void copy(std::byte* to, const std::byte* from, int64_t elems) override {
    std::byte* const pointers[] = {const_cast<std::byte*>(from), to};
    launcher_.add(copies_, ranks_, pointers, elems);
  }

  void execute(const Instruction& instruction, std::byte* const* pointers, int64_t elems) override {
    if (only_.front() != &instruction) flush();  // the launcher knows lists by their addresses
    only_.front() = &instruction;
    launcher_.add(only_, ranks_, pointers, elems);
  }

  void flush() override { launcher_.flush(); }

  bool idle() override {
    const DeviceGuard guard(staging_.device_);
    return is_done(stream_);
  }

  bool may_run_at_once(int64_t bytes) override {
    if (!staging_.at_once_ || bytes > kAtOnceBytes) return false;
    place_ = std::unique_lock(place_on(staging_.device_), std::try_to_lock);
    return place_.owns_lock();
  }

  bool run_at_once(const Table& table) override {
    if (!staging_.at_once_) return false;  // the ranks have come on other GPUs than last, of which two are one
    AtOnce& at_once = *staging_.at_once_;
    auto found = at_once.schedules.find(rank_schedule_.schedule->id);
    if (found == at_once.schedules.end())
      found = at_once.schedules.emplace(rank_schedule_.schedule->id, with_copies(rank_schedule_)).first;
    if (!found->second) return false;
    const Schedule& schedule = *found->second;
    std::vector<int> lane_of_rank(ranks_);
    std::iota(lane_of_rank.begin(), lane_of_rank.end(), 0);
    auto call = SignalledCall::of(schedule, {table}, at_once.signals.steps(schedule, lane_of_rank), kMaxSignalTiles);
    if (!call) return false;
    call->launch(rank_schedule_.rank, line_);
    return true;
  }

 private:
  const IpcStaging& staging_;
  const RankSchedule& rank_schedule_;
  const int ranks_;
  const cudaStream_t stream_;
  const Instruction copy_{0, 0, {0}, {1}, false};
  const std::vector<const Instruction*> copies_{&copy_};
  std::vector<const Instruction*> only_{nullptr};
  Line line_;
  Launcher launcher_;
  std::unique_lock<std::mutex> place_;
};

IpcStaging::IpcStaging(int device, int rank, int ranks, Torch torch)
    : device_(device), rank_(rank), torch_(torch), stagings_(ranks) {
  const DeviceGuard guard(device);
  DeviceMemory memory = Kept::instance().take(device, problem_);
  if (memory.get() == nullptr) return;
  cudaIpcMemHandle_t handle;
  static_assert(sizeof(handle) == sizeof(address_.staging));
  if (const cudaError_t status = cudaIpcGetMemHandle(&handle, memory.get()); status != cudaSuccess) {
    problem_ = words("cudaIpcGetMemHandle", status);
    return;
  }
  try {
    leave_mark(device, static_cast<std::byte*>(memory.get()) + kMarkAt, rank);
  } catch (const std::exception&) {  // the mark may still be on its way there
    Kept::instance().forget(std::move(memory), {});
    throw;
  }
  std::memcpy(&address_.staging, &handle, sizeof(handle));
  address_.gpu = gpu_of(device);
  own_ = std::move(memory);
  stagings_[rank] = static_cast<std::byte*>(own_.get());
}

// A group may end in any thread, on whose current GPU this process may have nothing.
IpcStaging::~IpcStaging() {
  if (own_.get() != nullptr && abandoned_)
    Kept::instance().forget(std::move(own_), at_once_ ? std::move(at_once_->signals) : LaneSignals());
  try {
    const std::shared_ptr<void> calls = torch_.calls_on(device_);
    for (const auto& [handle, memory] : opened_)
      if (memory != nullptr) cudaIpcCloseMemHandle(memory);
    at_once_.reset();
    // Nobody is told of an error here, and a later launch would be blamed for it.
    cudaGetLastError();
  } catch (const std::exception&) {  // in a fork, or after the driver has ended: there is nothing to close
  }
  if (own_.get() != nullptr) Kept::instance().give_back(device_, std::move(own_));
}

void IpcStaging::abandon() {
  abandoned_ = true;
  if (at_once_) at_once_->signals.abort();
}

bool IpcStaging::open(const std::vector<DeviceAddress>& addresses) {
  at_once_.reset();
  if (!open_all(addresses)) return false;
  if (!may_wait(addresses)) return true;
  std::vector<std::byte*> words;
  for (std::byte* staging : stagings_) words.push_back(staging + kOwnBytes);
  LaneSignals::reset(device_, words[rank_], words.size());
  at_once_ = std::make_unique<AtOnce>();
  at_once_->signals.open(std::move(words), kNoLimit);
  return true;
}

bool IpcStaging::open_all(const std::vector<DeviceAddress>& addresses) {
  const DeviceGuard guard(device_);
  for (size_t rank = 0; rank < addresses.size(); ++rank) {
    if (static_cast<int>(rank) == rank_) continue;
    const DeviceHandle& staging = addresses[rank].staging;
    std::byte*& memory = opened_[staging];
    if (memory == nullptr) {
      cudaIpcMemHandle_t handle;
      std::memcpy(&handle, &staging, sizeof(handle));
      void* found = nullptr;
      if (const cudaError_t status = cudaIpcOpenMemHandle(&found, handle, cudaIpcMemLazyEnablePeerAccess);
          status != cudaSuccess) {
        problem_ = words("cudaIpcOpenMemHandle", status);
        opened_.erase(staging);
        return false;
      }
      auto* const mark = static_cast<std::byte*>(found) + kMarkAt;
      problem_ = problem_with_mark(device_, mark, static_cast<int>(rank));
      if (!problem_.empty()) return false;  // it stays open: what hangs may still read it
      memory = static_cast<std::byte*>(found);
    }
    stagings_[rank] = memory;
  }
  return true;
}

std::unique_ptr<Executor> IpcStaging::executor(const FlagsCall& call) {
  return std::make_unique<OnStream>(*this, call, torch_.current_stream(device_));
}

}  // namespace fastreduce
