// What one rank does of a schedule, when every rank is a process of its own.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "schedule.h"

namespace fastreduce {

// A cell is one shard of one buffer. Most programs let some cells be touched by their owner only (the shard that a
// rank reduces, the outputs that a rank pulls): these stay in the rank's own tensors. All others are shared.
struct RankSchedule {
  RankSchedule(std::shared_ptr<const Schedule> schedule, int rank);

  struct Wait {
    int rank;
    uint64_t done;  // instructions of that rank, in one slice
  };
  struct Step {
    const Instruction* instruction;
    std::vector<int> copied;  // peers whose cells it touches
    std::vector<Wait> done;
  };

  int owner(int buffer) const { return buffer % schedule->ranks; }
  bool shared(int buffer, int shard) const { return shared_[buffer * schedule->shards + shard]; }

  std::shared_ptr<const Schedule> schedule;
  int rank;
  uint64_t fingerprint;          // of the instructions, alike on all ranks
  std::vector<Step> steps;       // this rank's instructions, in program order
  std::vector<uint64_t> counts;  // by rank: its instructions
  std::vector<int> copy_in;      // shards of this rank's buffer that peers read
  std::vector<int> copy_out;     // shards of this rank's buffer that peers write
  std::vector<Wait> written;     // peers' last instructions that write this rank's buffer
  std::vector<Wait> touched;     // the same, that read or write it

 private:
  std::vector<bool> shared_;
};

// The same program with the copies between a rank's tensor and its shared cells as instructions. In it the buffer
// behind all others is the tensor of the rank that executes: on every rank another. nullopt if a shard has no shared
// cell.
std::optional<Schedule> with_copies(const RankSchedule& rank_schedule);

}  // namespace fastreduce
