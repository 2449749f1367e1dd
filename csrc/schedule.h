// A program in the form that the engines take, with its waits and launches. It depends neither on torch nor on sizes
// nor on memory.
#pragma once

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

namespace fastreduce {

// The rank of instructions that the CPU executes.
constexpr int kHost = -1;

// One source is a copy, many sources are a reduction in the order given.
struct Instruction {
  int rank;
  int shard;
  std::vector<int> srcs;  // buffers read
  std::vector<int> dsts;  // buffers written
  bool completes;         // here partial results become the sum over all ranks, which avg divides
};

// Buffers 0..ranks-1 are the ranks' tensors. Collectives whose results go to other tensors (reduce_scatter,
// all_gather) have the ranks' outputs as buffers ranks..2*ranks-1.
class Schedule {
 public:
  Schedule(int ranks, int buffers, int shards, std::vector<Instruction> instructions,
           std::vector<std::vector<int>> waits, std::vector<std::vector<int>> launches, bool whole_tensors = false,
           int sliced = 0, double idle_shards = 0)
      : id(next_id()),
        ranks(ranks),
        buffers(buffers),
        shards(shards),
        instructions(std::move(instructions)),
        waits(std::move(waits)),
        launches(std::move(launches)),
        whole_tensors(whole_tensors),
        sliced(sliced),
        idle_shards(idle_shards),
        by_shard(shards),
        written(buffers, false) {
    for (const Instruction& instruction : this->instructions) {
      by_shard.at(instruction.shard).push_back(&instruction);
      for (int dst : instruction.dsts) written.at(dst) = true;
    }
  }
  Schedule(Schedule&&) = default;  // not copied: by_shard points into instructions

  int slices(int64_t nbytes) const { return slices_of(nbytes, shards, sliced, idle_shards); }

  // How many slices the events engine cuts each shard into if a rank has `nbytes` in all: `sliced`, unless it is 0. A
  // rank passes on the first slice while it receives the second. With s slices the ranks wait 1/s as long for each
  // other, and the busiest rank has s times as many launches; this is the s for which both together take the shortest
  // time, where a launch takes as long as a link needs for kLaunchBytes. Predicted: 40 KiB is right for 8 lanes of
  // PCIe 3.0, 700 KiB for NVLink 4. On all presets and sizes from 64 KiB to 8 GiB the fastest registered algorithm is
  // as fast as with the best number; `tree` takes 3 % longer on average.
  static int slices_of(int64_t nbytes, int64_t shards, int sliced, double idle_shards) {
    if (sliced > 0) return sliced;
    constexpr double kLaunchBytes = 1 << 18;
    constexpr double kMaxSlices = 64;  // predicted: more launches cost more than they hide
    const double idle_bytes = idle_shards * static_cast<double>(nbytes) / static_cast<double>(shards);
    return static_cast<int>(std::clamp(std::round(std::sqrt(idle_bytes / kLaunchBytes)), 1.0, kMaxSlices));
  }

  uint64_t id;
  int ranks;
  int buffers;
  int shards;
  std::vector<Instruction> instructions;
  std::vector<std::vector<int>> waits;                    // by instruction: the earlier ones it must come after
  std::vector<std::vector<int>> launches;                 // neighbours of one rank that may run at the same time
  bool whole_tensors;                                     // shard s is every tensor whose index is s modulo shards
  int sliced;                                             // slices of a shard that the program asks for; 0: by size
  double idle_shards;                                     // what slices can win (csrc/simulation/program.h)
  std::vector<std::vector<const Instruction*>> by_shard;  // program order within each shard
  std::vector<bool> written;                              // by buffer

 private:
  static uint64_t next_id() {
    static std::atomic<uint64_t> last{0};
    return ++last;
  }
};

}  // namespace fastreduce
