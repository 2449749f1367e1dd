// Carries a program out on sets of contributions instead of numbers.
#pragma once

#include <optional>

#include "simulation/program.h"

namespace fastreduce::simulation {

using RankSet = std::vector<uint64_t>;  // a set of ranks as bits; bit `ranks`: what an output held before

// A shard of a buffer that ends with anything but its goal.
struct WrongCell {
  int buffer;
  int shard;
  RankSet once;   // whose contribution is in it
  RankSet twice;  // whose contribution is in it more than once
};

// `goals[goal_of[buffer * shards + shard]]` is what the shard of the buffer must hold in the end; -1: anything.
// Returns the first cell that does not, by buffer, then by shard.
std::optional<WrongCell> first_wrong(const FlatProgram& program, const std::vector<RankSet>& goals,
                                     std::span<const int> goal_of, const Pause& pause);

// For each instruction, whether it turns partial results into the sum over all ranks.
std::vector<bool> completes(const FlatProgram& program, const Pause& pause);

// How many words a set of contributions has.
size_t words_of(const FlatProgram& program);

}  // namespace fastreduce::simulation
