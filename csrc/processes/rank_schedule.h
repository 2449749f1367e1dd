// The part of a schedule that one rank does when every rank is a process.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "schedule.h"

namespace fastreduce {

// A cell is one shard of one buffer. In most programs some cells are read and written by their owner only (the shard
// that a rank reduces, the outputs that a rank pulls). These stay in the rank's own tensors; all others are shared.
struct RankSchedule {
  RankSchedule(std::shared_ptr<const Schedule> schedule, int rank);

  struct Wait {
    int rank;
    uint64_t done;  // how many instructions of one slice that rank must have done
  };
  struct Step {
    const Instruction* instruction;
    std::vector<int> copied;  // peers that must have copied their cells in, because it touches them
    std::vector<Wait> done;   // what peers must have done before it
  };

  int owner(int buffer) const { return buffer % schedule->ranks; }
  bool shared(int buffer, int shard) const { return shared_[buffer * schedule->shards + shard]; }

  std::shared_ptr<const Schedule> schedule;
  int rank;
  uint64_t fingerprint;          // of the instructions, alike on all ranks
  std::vector<Step> steps;       // this rank's instructions, in program order
  std::vector<uint64_t> counts;  // each rank's number of instructions
  std::vector<int> copy_in;      // shards of this rank's buffer that peers read
  std::vector<int> copy_out;     // shards of this rank's buffer that peers write
  std::vector<Wait> written;     // peers' last instructions that write this rank's buffer
  std::vector<Wait> touched;     // peers' last instructions that read or write it

 private:
  std::vector<bool> shared_;
};

// The same program, in which the copies between a rank's tensor and its shared cells are instructions too. Its last
// buffer is the tensor of whichever rank executes it. nullopt if some shard has no shared cell.
std::optional<Schedule> with_copies(const RankSchedule& rank_schedule);

}  // namespace fastreduce
