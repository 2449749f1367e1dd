#include "processes/flags.h"

#include <algorithm>
#include <cstring>

#include "cpu/kernels.h"
#include "rows.h"

namespace fastreduce {
namespace {

// The most that one rank stages at a time, and how many slices are on their way: copied in, reduced and copied out.
// More of either would leave the cache. 2 ranks on 2 Xeon cores with 2 MiB of L2 each, 1 to 64 MiB, 2026-11-22: slices
// of 64 to 256 KiB and 2 to 4 of them differ by less than 15 %; 512 KiB take up to 1.5 times as long at 16 MiB.
constexpr int64_t kSliceBytes = 256 * 1024;
constexpr int64_t kSlots = 3;
static_assert(kSlots >= 3, "the slice that is copied in must not take the slot of the one that is copied out");
constexpr int64_t kLineBytes = 64;

int64_t round_up(int64_t value, int64_t unit) { return (value + unit - 1) / unit * unit; }

// The shards of all items, one item behind the other, cut into slices. Element e of every shard lies at the same place
// on every rank.
struct Slices {
  int64_t line_elems = 1;
  int64_t total_elems = 0;  // of one shard
  int64_t slice_elems = 0;  // of one shard
  int64_t count = 0;

  Slices(const FlagsCall& call, int64_t staging_bytes) : line_elems(kLineBytes / call.elem_bytes) {
    for (const Item& item : call.items) total_elems += round_up(item.part_elems, line_elems);
    const int64_t shards = call.plan.schedule->shards;
    const int64_t slot_bytes = std::min(kSliceBytes, staging_bytes / kSlots);
    const int64_t most_elems = slot_bytes / shards / kLineBytes * line_elems;
    if (most_elems == 0)
      throw GroupError("shared_bytes is too little for a program of " + std::to_string(shards) + " shards");
    slice_elems = std::min(total_elems, most_elems);
    count = slice_elems ? (total_elems + slice_elems - 1) / slice_elems : 0;
  }
};

class Run {
 public:
  Run(Group& group, const FlagsCall& call)
      : group_(group),
        call_(call),
        plan_(call.plan),
        schedule_(*call.plan.schedule),
        reduce_(cpu_kernels().select(call.dtype, call.op)),
        slices_(call, static_cast<int64_t>(group.staging_bytes())),
        srcs_(schedule_.buffers),
        dsts_(schedule_.buffers) {}

  void run() {
    group_.begin(call_.timeout);
    const bool ready = call_.announcement.memory.bytes == 0 && slices_.count > 0;
    if (ready) copy_in(0);
    group_.arrive(call_.announcement);
    group_.meet();
    if (all_reachable()) return run_in_place();
    if (!ready && slices_.count > 0) copy_in(0);
    for (int64_t slice = 0; slice < slices_.count; ++slice) {
      if (slice + 1 < slices_.count) copy_in(slice + 1);
      for (size_t step = 0; step < plan_.steps.size(); ++step) execute(slice, step);
      if (slice > 0) copy_out(slice - 1);
    }
    if (slices_.count > 0) copy_out(slices_.count - 1);
  }

 private:
  // All ranks read the same announcements, so they agree.
  bool all_reachable() const {
    for (int rank = 0; rank < group_.size(); ++rank)
      if (group_.announced(rank).memory.bytes == 0) return false;
    return true;
  }

  // The whole tensors are one slice, which every rank has copied in by arriving.
  void run_in_place() {
    slices_.slice_elems = slices_.total_elems;
    for (int rank = 0; rank < group_.size(); ++rank)
      memories_.push_back(rank == plan_.rank ? nullptr : group_.announced_memory(rank));
    group_.advance_copied(1);
    for (size_t step = 0; step < plan_.steps.size(); ++step) execute(0, step);
    wait_for(plan_.touched, 0);
  }

  void copy_in(int64_t slice) {
    if (slice >= kSlots) wait_for(plan_.touched, slice - kSlots);
    for (int shard : plan_.copy_in)
      each_piece(slice, shard, [&](const Item& item, int64_t at, int64_t begin, int64_t elems) {
        std::memcpy(staged(plan_.rank, shard, slice, at), local(item.in[shard], begin), elems * call_.elem_bytes);
      });
    group_.advance_copied(slice + 1);
  }

  void execute(int64_t slice, size_t number) {
    const RankPlan::Step& step = plan_.steps[number];
    const Instruction& x = *step.instruction;
    for (int peer : step.copied) group_.wait_copied(peer, slice + 1);
    wait_for(step.done, slice);
    const int divisor = call_.op == Op::avg ? schedule_.divisor(x) : 1;
    each_piece(slice, x.shard, [&](const Item& item, int64_t at, int64_t begin, int64_t elems) {
      const auto address = [&](int buffer) {
        const int owner = plan_.owner(buffer);
        const Span& span = (buffer < schedule_.ranks ? item.in : item.out)[x.shard];
        if (!memories_.empty() && owner != plan_.rank)
          return memories_[owner] + (span.offset_elems + begin) * call_.elem_bytes;
        if (memories_.empty() && plan_.shared(buffer, x.shard)) return staged(owner, x.shard, slice, at);
        return local(span, begin);
      };
      std::transform(x.srcs.begin(), x.srcs.end(), srcs_.begin(), address);
      std::transform(x.dsts.begin(), x.dsts.end(), dsts_.begin(), address);
      reduce_(srcs_.data(), static_cast<int>(x.srcs.size()), dsts_.data(), static_cast<int>(x.dsts.size()), elems,
              divisor);
    });
    group_.advance_done(slice * plan_.steps.size() + number + 1);
  }

  void copy_out(int64_t slice) {
    wait_for(plan_.written, slice);
    for (int shard : plan_.copy_out)
      each_piece(slice, shard, [&](const Item& item, int64_t at, int64_t begin, int64_t elems) {
        std::memcpy(local(item.in[shard], begin), staged(plan_.rank, shard, slice, at), elems * call_.elem_bytes);
      });
  }

  void wait_for(const std::vector<RankPlan::Wait>& waits, int64_t slice) {
    for (const RankPlan::Wait& wait : waits) group_.wait_done(wait.rank, slice * plan_.counts[wait.rank] + wait.done);
  }

  // Calls visit(item, element within the slice's shard, element within the item's shard, elements).
  template <class Visit>
  void each_piece(int64_t slice, int shard, const Visit& visit) const {
    const int64_t first = slice * slices_.slice_elems;
    int64_t item_first = 0;
    for (const Item& item : call_.items) {
      const int64_t begin = std::max<int64_t>(first - item_first, 0);
      const int64_t elems = longest(item, shard);
      const int64_t end = std::min(first + slices_.slice_elems - item_first, elems);
      if (begin < end) visit(item, item_first + begin - first, begin, end - begin);
      item_first += round_up(item.part_elems, slices_.line_elems);
    }
  }

  // A shard of which this rank has no tensor (the output of another) still has its length.
  static int64_t longest(const Item& item, int shard) { return std::max(item.in[shard].elems, item.out[shard].elems); }

  std::byte* local(const Span& span, int64_t begin) const { return span.data + begin * call_.elem_bytes; }

  std::byte* staged(int rank, int shard, int64_t slice, int64_t at) const {
    const int64_t slot = slice % kSlots * schedule_.shards + shard;
    return group_.staging(rank) + (slot * slices_.slice_elems + at) * call_.elem_bytes;
  }

  Group& group_;
  const FlagsCall& call_;
  const RankPlan& plan_;
  const Schedule& schedule_;
  const Reduce reduce_;
  Slices slices_;
  std::vector<std::byte*> srcs_, dsts_;
  std::vector<std::byte*> memories_;  // by rank, if peers work on the tensors themselves
};

}  // namespace

const size_t kStagingBytes = kSlots * kSliceBytes;

void run_flags(Group& group, const FlagsCall& call) { Run(group, call).run(); }

}  // namespace fastreduce
