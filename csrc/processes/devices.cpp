#include "processes/devices.h"

#include <c10/core/DeviceGuard.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <thread>

namespace fastreduce {
namespace {

// How long a failed call waits for what it has enqueued, before it frees the memory that this writes to. No other rank
// is waited for, so a GPU needs milliseconds (predicted). Virtual GPUs under ThreadSanitizer, five such programs on two
// cores, needed more than 2 s (2026-11-26).
constexpr std::chrono::seconds kLastWork{20};

// Whether the group can still be used after this error. It can if the ranks' calls differ, since all ranks raise before
// any of them works on another's memory.
bool goes_on(const Group& group, const std::exception& error) {
  return dynamic_cast<const GroupError*>(&error) && group.failed_at_all().empty();
}

// Returns why the GPU may still be at it, or nothing if it says that it has ended.
std::string wait_for_last_work(Executor& executor) {
  const Clock::time_point end = Clock::now() + kLastWork;
  try {
    while (!executor.idle()) {
      if (Clock::now() > end) return "it still runs after " + std::to_string(kLastWork.count()) + " s";
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

}  // namespace

MakeDeviceStaging make_device_staging = nullptr;
bool share_device_memory = true;
bool wait_on_shared_gpus = false;
void (*refuse_captures)(int device) = nullptr;
std::shared_ptr<void> (*beside_captures)() = nullptr;

bool DeviceGroup::run(FlagsCall& call, c10::Device device) {
  auto& staging = stagings_[device.index()];
  if (!staging) staging = make_device_staging(device.index(), group_.rank(), group_.size());
  call.announcement.device = staging->address();
  const auto executor = staging->executor(call);
  try {
    return run_flags(group_, call, *executor, [&] { return joined(*staging); });
  } catch (const std::exception& error) {
    const bool may_go_on = goes_on(group_, error);
    if (!may_go_on) staging->abandon();
    // The call's memory is free after this, and if the group goes on, the next call uses it.
    const std::string trouble = wait_for_last_work(*executor);
    if (may_go_on && !trouble.empty()) {
      group_.fail("the GPU of rank " + group_.name() + " has not ended its part of a call that differed: " + trouble);
      staging->abandon();
    }
    throw;
  }
}

bool DeviceGroup::joined(DeviceStaging& staging) {
  std::vector<DeviceAddress> announced;
  for (int rank = 0; rank < group_.size(); ++rank) announced.push_back(group_.announced(rank).device);
  if (announced == known_) return true;
  const bool all_have = std::none_of(announced.begin(), announced.end(),
                                     [](const DeviceAddress& x) { return x.staging == DeviceHandle{}; });
  reach_ = all_have && group_.all(staging.open(announced));
  if (reach_) known_ = announced;
  if (!reach_ && group_.rank() == 0)
    TORCH_WARN("fastreduce: tensors on GPUs go through the CPU's memory in this group: ",
               staging.problem().empty() ? "another rank cannot share its GPU's memory" : staging.problem());
  return reach_;
}

CallStream::CallStream(c10::Device device, bool waits) : stream_(c10::Stream::DEFAULT, device) {
  if (refuse_captures) refuse_captures(device.index());
  const c10::impl::VirtualGuardImpl guard(device.type());
  const c10::Stream current = guard.getStream(device);
  stream_ = waits ? current : guard.getStreamFromGlobalPool(device, /*isHighPriority=*/true);
  if (waits) return;
  // Torch's events make the device from before current again, which makes a context there. Its guards do not.
  const c10::DeviceGuard here(device);
  before_.emplace(device.type());
  before_->record(current);
}

const c10::Stream& CallStream::begin() {
  if (!before_) return stream_;
  c10::impl::VirtualGuardImpl(stream_.device_type()).setDevice(stream_.device());
  before_->block(stream_);
  before_.reset();
  return stream_;
}

}  // namespace fastreduce
