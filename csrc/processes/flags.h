// The engine for ranks that are processes. Counters in shared memory say what may be done next.
#pragma once

#include <functional>
#include <vector>

#include "ops.h"
#include "processes/executor.h"
#include "processes/group.h"
#include "processes/rank_schedule.h"

namespace fastreduce {

// The most staging memory that a rank can use.
extern const size_t kStagingBytes;

// How many slices are worked on at the same time: one is copied in, one is reduced, one is copied out.
constexpr int64_t kSlots = 3;
static_assert(kSlots >= 3, "the slice that is copied in must not take the slot of the one that is copied out");

struct Span {
  std::byte* data = nullptr;
  int64_t elems = 0;
  int64_t offset_elems = 0;  // from the beginning of the announced memory, alike on all ranks
};

// One tensor of this rank, cut into shards. `in` and `out` are the same for a call in place.
struct Item {
  int64_t part_elems;  // of its longest shard, alike on all ranks
  std::vector<Span> in;
  std::vector<Span> out;
};

struct FlagsCall {
  const RankSchedule& rank_schedule;
  DType dtype;
  Op op;
  int64_t elem_bytes;
  std::vector<Item> items;
  Announcement announcement;
  std::chrono::milliseconds timeout;
};

// Does the call and leaves the results in the items. Throws GroupError; if it says that calls differ, nothing was
// written.
//
// Tensors of any size go through the staging memory in slices: while peers reduce one slice, the next is copied in and
// the one before is copied out. If all ranks announce memory that peers can reach, nothing is copied: peers work on
// the tensors themselves.
void run_flags(Group& group, const FlagsCall& call);

// The same on an executor that has staging memory of its own, of one size on all ranks. This rank tells its peers of a
// step only when the executor is idle; so no work on the executor waits for another rank, whatever becomes of that
// rank. When all have met, `joined` says, alike on all ranks, whether they can reach each other's memory; if they
// cannot, this returns false and has written nothing.
bool run_flags(Group& group, const FlagsCall& call, Executor& executor, const std::function<bool()>& joined);

}  // namespace fastreduce
