// The flags engine for several GPUs, of one process or of one process each.
#pragma once

#include <cstddef>
#include <list>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "cuda/enqueue.h"
#include "cuda/launch.h"

namespace fastreduce {

// What the blocks of some lanes tell each other (cuda/signals.cuh). Only for calls that come one after the other on
// every lane.
class LaneSignals {
 public:
  static constexpr int64_t bytes(size_t lanes) {
    return static_cast<int64_t>(lanes * kMaxSignalTiles * sizeof(uint32_t));
  }
  // A lane's words, before any lane uses them.
  static void reset(int device, std::byte* words, size_t lanes);

  void allocate(const std::vector<Lane*>& lanes);
  // With words by lane that others keep, and have reset. A wait of so many seconds ends the program with an error.
  void open(std::vector<std::byte*> words, uint32_t max_wait_s);
  // How far the lanes wait for each other in a program's launches; kept for later calls.
  const LaneSteps& steps(const Schedule& schedule, const std::vector<int>& lane_of_rank);
  // After a launch that failed, lets the blocks of the others go. The signals must not be used again.
  void abort();

 private:
  std::vector<DeviceMemory> own_;
  std::vector<std::byte*> words_;  // by lane
  HostMemory end_;
  std::map<std::pair<uint64_t, std::vector<int>>, LaneSteps> steps_;  // by the schedule's number
};

// The signals of calls by their lanes and the lanes' streams.
class SignalSets {
 public:
  LaneSignals& of(const std::vector<Lane*>& lanes, const std::vector<cudaStream_t>& streams);
  void abort(LaneSignals& signals);

 private:
  std::map<std::pair<std::vector<Lane*>, std::vector<cudaStream_t>>, LaneSignals> sets_;
  std::list<LaneSignals> aborted_;  // not freed: what was enqueued, or captured by a user, may still use them
};

// Whether kernels must not wait for later launches, because each launch returns when it is done.
bool launches_block();

// One call as one launch per lane (or a few: one for each dtype, and for each table's worth of rows). All lanes get the
// same launch. A lane's block takes its tile through the instructions of its own ranks, and waits for the other lanes'
// blocks of the same tile.
class SignalledCall {
 public:
  // False if kernels of these lanes cannot wait for each other, whatever the tensors.
  static bool may_serve(const Schedule& schedule, const Layout& layout);
  // How many blocks of one launch run on each device at the same time, when all lanes have such a launch.
  static int64_t blocks_at_once(const std::vector<Lane*>& lanes);
  // nullopt if it does not fit, or has a launch of more than `most_blocks`.
  static std::optional<SignalledCall> of(const Schedule& schedule, const std::vector<Table>& tables,
                                         const LaneSteps& steps, int64_t most_blocks);
  void launch(std::vector<Line>& lines);  // one for each lane, which run at the same time
  void launch(size_t lane, Line& line);   // where the other lanes are other processes'

 private:
  struct Launch {
    const void* kernel;
    unsigned blocks;
    std::vector<std::byte> args;
  };
  static void launch(Launch& launch, size_t lane, Line& line);

  std::vector<Launch> launches_;
};

}  // namespace fastreduce
