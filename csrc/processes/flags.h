// The engine for ranks that are processes: counters in shared memory order the work.
#pragma once

#include <functional>
#include <vector>

#include "ops.h"
#include "processes/executor.h"
#include "processes/group.h"
#include "processes/rank_schedule.h"

namespace fastreduce {

// What one rank stages at most: more staging memory is of no use.
extern const size_t kStagingBytes;

// How many slices are on their way: copied in, reduced and copied out.
constexpr int64_t kSlots = 3;
static_assert(kSlots >= 3, "the slice that is copied in must not take the slot of the one that is copied out");

struct Span {
  std::byte* data = nullptr;
  int64_t elems = 0;
  int64_t offset_elems = 0;  // from the beginning of the announced memory, alike on all ranks
};

// One tensor of this rank, by shard. In place, both are the same.
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

// Leaves the results in the items. Throws GroupError; if that says that the calls differ, nothing was written.
//
// Tensors of any size go through the staging memory in slices: while peers reduce one slice, the next is copied in and
// the one before is copied out. If all ranks announce memory that peers can reach, nothing is copied: peers work on
// the tensors themselves.
void run_flags(Group& group, const FlagsCall& call);

// The same by an executor that has memory of its own, as large on all ranks. A counter moves only when the executor is
// idle: so nothing that it does waits for another rank, whatever becomes of that one. When all have met, `joined` says
// whether they can reach each other's memory, the same on all ranks; if not, this returns false and nothing was
// written.
bool run_flags(Group& group, const FlagsCall& call, Executor& executor, const std::function<bool()>& joined);

}  // namespace fastreduce
