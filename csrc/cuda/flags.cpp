#include "cuda/flags.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <new>

#include "cuda/environment.h"
#include "cuda/peers.h"

namespace fastreduce {
namespace {

// Streams of one device may share a hardware queue if there are more of them than this (the default of
// CUDA_DEVICE_MAX_CONNECTIONS). Then a launch might wait for another that waits for it.
constexpr int kMaxLanesPerDevice = 8;

// Nobody looks on while the kernels of one process wait. Predicted: longer than a kernel of the user's that keeps
// another GPU busy.
constexpr uint32_t kMaxWaitS = 60;

// A training step repeats a few programs (predicted).
constexpr size_t kMaxKeptSteps = 64;

bool all_reach(const Layout& layout) {
  for (const Lane* lane : layout.lanes)
    for (const Lane* other : layout.lanes)
      if (!can_reach(lane->device, other->device)) return false;
  return layout.closed.empty();
}

// A lane does its part of a row in order, so of the instructions that it must have done only the last is waited for.
std::vector<LaneStep> lane_steps(const Schedule& schedule, const std::vector<int>& lane_of_rank) {
  std::vector<LaneStep> steps;
  std::vector<uint16_t> number_of(schedule.instructions.size());
  for (const auto& of_shard : schedule.by_shard)
    for (size_t number = 0; number < of_shard.size(); ++number)
      number_of[of_shard[number] - schedule.instructions.data()] = static_cast<uint16_t>(number);
  for (size_t i = 0; i < schedule.instructions.size(); ++i) {
    LaneStep step{lane_of_rank[schedule.instructions[i].rank]};
    std::map<int, int> last;  // by lane
    for (int earlier : schedule.waits[i])
      if (const int lane = steps[earlier].lane; lane != step.lane)
        last[lane] = last.contains(lane) ? std::max(last[lane], earlier) : earlier;
    for (const auto& [lane, earlier] : last) {
      step.waits.push_back({static_cast<uint16_t>(lane), number_of[earlier]});
      steps[earlier].awaited = true;
    }
    steps.push_back(std::move(step));
  }
  return steps;
}

bool fits(const Schedule& schedule, const LaneSteps& steps) {
  return std::all_of(schedule.by_shard.begin(), schedule.by_shard.end(),
                     [&](const auto& instructions) { return fits_one_launch(instructions, &steps); });
}

}  // namespace

bool launches_block() {
  static const bool block = is_set_to("CUDA_LAUNCH_BLOCKING", "1");
  return block;
}

// Words begin at their largest value, so that the first call sees them wrap around, and not the one after half an hour.
// Set on a stream of its own, since the others may be captured.
void LaneSignals::reset(int device, std::byte* words, size_t lanes) {
  const DeviceGuard guard(device);
  const Stream stream = make_stream();
  cuda_check(cudaMemsetAsync(words, 0xff, bytes(lanes), stream.get()), "cudaMemsetAsync");
  cuda_check(cudaStreamSynchronize(stream.get()), "cudaStreamSynchronize");
}

void LaneSignals::allocate(const std::vector<Lane*>& lanes) {
  std::vector<std::byte*> words;
  for (const Lane* lane : lanes) {
    own_.push_back(allocate_device(lane->device, bytes(lanes.size())));
    words.push_back(static_cast<std::byte*>(own_.back().get()));
    reset(lane->device, words.back(), lanes.size());
  }
  open(std::move(words), kMaxWaitS);
}

void LaneSignals::open(std::vector<std::byte*> words, uint32_t max_wait_s) {
  end_ = allocate_host(sizeof(WaitEnd));
  new (end_.get()) WaitEnd{0, max_wait_s};
  words_ = std::move(words);
}

const LaneSteps& LaneSignals::steps(const Schedule& schedule, const std::vector<int>& lane_of_rank) {
  if (steps_.size() > kMaxKeptSteps) steps_.clear();
  const auto [found, is_new] = steps_.try_emplace({schedule.id, lane_of_rank});
  LaneSteps& steps = found->second;
  if (!is_new) return steps;
  steps = {schedule.instructions.data(), lane_steps(schedule, lane_of_rank), words_};
  steps.signals.push_back(static_cast<std::byte*>(end_.get()));
  return steps;
}

void LaneSignals::abort() {
  if (!end_.get()) return;
  std::atomic_ref(static_cast<WaitEnd*>(end_.get())->now).store(1, std::memory_order_release);
}

LaneSignals& SignalSets::of(const std::vector<Lane*>& lanes, const std::vector<cudaStream_t>& streams) {
  const auto [set, is_new] = sets_.try_emplace({lanes, streams});
  if (!is_new) return set->second;
  try {
    set->second.allocate(lanes);
  } catch (const std::exception&) {
    abort(set->second);
    throw;
  }
  return set->second;
}

void SignalSets::abort(LaneSignals& signals) {
  signals.abort();
  aborted_.push_back(std::move(signals));
  std::erase_if(sets_, [&](const auto& set) { return &set.second == &signals; });
}

bool SignalledCall::may_serve(const Schedule& schedule, const Layout& layout) {
  const auto on_host = [](const Instruction& x) { return x.rank == kHost; };
  return std::none_of(schedule.instructions.begin(), schedule.instructions.end(), on_host) && all_reach(layout) &&
         !launches_block();
}

int64_t SignalledCall::blocks_at_once(const std::vector<Lane*>& lanes) {
  std::map<int, int> lanes_of_device;
  for (const Lane* lane : lanes) ++lanes_of_device[lane->device];
  int blocks = kMaxSignalTiles;
  for (const auto& [device, count] : lanes_of_device) {
    int processors;
    cuda_check(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device), "cudaDeviceGetAttribute");
    blocks = std::min(blocks, count > kMaxLanesPerDevice ? 0 : processors * kBlocksPerProcessor / count);
  }
  return blocks;
}

std::optional<SignalledCall> SignalledCall::of(const Schedule& schedule, const std::vector<Table>& tables,
                                               const LaneSteps& steps, int64_t most_blocks) {
  if (!fits(schedule, steps)) return std::nullopt;
  SignalledCall call;
  const auto keep = [&](const KernelLaunch& launch) {
    const auto* args = static_cast<const std::byte*>(launch.args);
    call.launches_.push_back({launch.kernel, launch.blocks, {args, args + launch.args_bytes}});
  };
  launch_rows(schedule, tables, keep, &steps);
  for (const Launch& launch : call.launches_)
    if (launch.blocks > most_blocks) return std::nullopt;
  return call;
}

void SignalledCall::launch(std::vector<Line>& lines) {
  // Loading a kernel may have to wait for what runs on its device.
  for (const Launch& launch : launches_)
    for (Line& line : lines) line.load(launch.kernel);
  for (Launch& each : launches_)
    for (size_t lane = 0; lane < lines.size(); ++lane) launch(each, lane, lines[lane]);
}

void SignalledCall::launch(size_t lane, Line& line) {
  for (Launch& each : launches_) launch(each, lane, line);
}

void SignalledCall::launch(Launch& launch, size_t lane, Line& line) {
  launch.args[offsetof(LaunchArgs, lane)] = static_cast<std::byte>(lane);
  line.launch({launch.kernel, launch.blocks, kThreads, launch.args.data(), launch.args.size()});
}

}  // namespace fastreduce
