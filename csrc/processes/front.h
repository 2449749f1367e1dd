// What lies at the beginning of each rank's shared memory.
#pragma once

#include "processes/group.h"
#include "processes/labels.h"

namespace fastreduce {

constexpr uint64_t kMagic = 0x6661737472656436;  // also the version of this layout

constexpr int32_t kNobody = -1;

// How often a sleeping rank looks whether its peers still live: ten times within the second in which it shall notice.
constexpr std::chrono::milliseconds kLook{100};

// Two areas for staging follow.
struct alignas(4096) Group::Front {
  uint64_t magic;
  uint64_t token;  // in the invitation too: whoever has it was invited by this very process
  uint64_t staging_bytes;
  int32_t rank;
  int32_t size;
  alignas(64) Bell bell;
  std::atomic<int32_t> awaited{kNobody};  // the rank that this one waits for: for errors
  std::atomic<State> state{State::member};
  uint64_t failed_since = 0;  // the round; calls before it are not affected
  std::array<char, 512> reason;
  std::array<Desk, 2> desks;
  LabelTables labels;
};

}  // namespace fastreduce
