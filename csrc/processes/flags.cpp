#include "processes/flags.h"

#include <algorithm>
#include <cstring>

#include "cpu/kernels.h"
#include "rows.h"

namespace fastreduce {
namespace {

// The most that one rank stages at a time. 2 ranks on 2 Xeon cores with 2 MiB of L2 each, 1 to 64 MiB, 2026-11-22:
// slices of 64 to 256 KiB and 2 to 4 of them on their way differ by less than 15 %; 512 KiB take up to 1.5 times as
// long at 16 MiB. More of either would leave the cache.
constexpr int64_t kSliceBytes = 256 * 1024;

// The shards of all items, one item behind the other, cut into slices. Element e of every shard lies at the same place
// on every rank.
struct Slices {
  int64_t line_elems = 1;
  int64_t total_elems = 0;  // of one shard
  int64_t slice_elems = 0;  // of one shard
  int64_t count = 0;

  Slices(const FlagsCall& call, const Executor& executor) : line_elems(kLineBytes / call.elem_bytes) {
    for (const Item& item : call.items) total_elems += round_up(item.part_elems, line_elems);
    const int64_t shards = call.rank_schedule.schedule->shards;
    const int64_t slot_bytes = std::min(executor.slice_bytes(), executor.staging_bytes() / kSlots);
    const int64_t most_elems = slot_bytes / shards / kLineBytes * line_elems;
    if (most_elems == 0)
      throw GroupError("shared_bytes is too little for a program of " + std::to_string(shards) + " shards");
    slice_elems = std::min(total_elems, most_elems);
    count = slice_elems ? (total_elems + slice_elems - 1) / slice_elems : 0;
  }
};

class CpuExecutor final : public Executor {
 public:
  CpuExecutor(const Group& group, const FlagsCall& call)
      : group_(group),
        call_(call),
        reduce_(cpu_kernels().select(call.dtype, call.op)),
        srcs_(call.rank_schedule.schedule->buffers),
        dsts_(call.rank_schedule.schedule->buffers) {}

  int64_t staging_bytes() const override { return static_cast<int64_t>(group_.staging_bytes()); }
  int64_t slice_bytes() const override { return kSliceBytes; }
  std::byte* staging(int rank) const override { return group_.staging(rank); }

  void copy(std::byte* to, const std::byte* from, int64_t elems) override {
    std::memcpy(to, from, elems * call_.elem_bytes);
  }

  void execute(const Instruction& x, std::byte* const* pointers, int64_t elems) override {
    const auto address = [&](int buffer) { return pointers[buffer]; };
    std::transform(x.srcs.begin(), x.srcs.end(), srcs_.begin(), address);
    std::transform(x.dsts.begin(), x.dsts.end(), dsts_.begin(), address);
    const int divisor = divisor_of(call_.op, x.completes, call_.rank_schedule.schedule->ranks);
    reduce_(srcs_.data(), static_cast<int>(x.srcs.size()), dsts_.data(), static_cast<int>(x.dsts.size()), elems,
            divisor);
  }

 private:
  const Group& group_;
  const FlagsCall& call_;
  const Reduce reduce_;
  std::vector<std::byte*> srcs_, dsts_;
};

class SlicedRun {
 public:
  SlicedRun(Group& group, const FlagsCall& call, Executor& executor)
      : group_(group),
        call_(call),
        executor_(executor),
        rank_schedule_(call.rank_schedule),
        schedule_(*call.rank_schedule.schedule),
        slices_(call, executor),
        pointers_(schedule_.buffers) {}

  // Returns when the results are there. `own_memory`: the executor's, which is used again at once.
  bool run(const std::function<bool()>& joined, bool own_memory) {
    Announcement mine = call_.announcement;
    mine.at_once =
        slices_.count == 1 && executor_.may_run_at_once(slices_.slice_elems * schedule_.shards * call_.elem_bytes);
    const bool ready =
        mine.memory.bytes == 0 && slices_.count > 0 && executor_.staging(rank_schedule_.rank) && !mine.at_once;
    if (ready) copy_in(0);
    const bool told = ready && executor_.idle();
    if (told) group_.advance_copied(1);
    group_.arrive(mine);
    group_.meet();
    if (!joined()) return false;
    if (all_announce([](const Announcement& x) { return x.memory.bytes > 0; })) return run_in_place(), true;
    if (all_announce([](const Announcement& x) { return x.at_once; }) && executor_.run_at_once(table()))
      return group_.finish_together([this] { return executor_.idle(); }), true;
    if (!ready && slices_.count > 0) copy_in(0);
    if (!told && slices_.count > 0) tell_copied(0);
    for (int64_t slice = 0; slice < slices_.count; ++slice) {
      if (slice + 1 < slices_.count) {
        copy_in(slice + 1);
        tell_copied(slice + 1);
      }
      for (size_t step = 0; step < rank_schedule_.steps.size(); ++step) execute(slice, step);
      if (slice > 0) copy_out(slice - 1);
    }
    if (slices_.count > 0) copy_out(slices_.count - 1);
    finish();
    if (own_memory && slices_.count > 0) wait_for(rank_schedule_.touched, slices_.count - 1);
    return true;
  }

 private:
  // All ranks read the same announcements, so they agree.
  template <class Says>
  bool all_announce(const Says& says) const {
    for (int rank = 0; rank < group_.size(); ++rank)
      if (!says(group_.announced(rank))) return false;
    return true;
  }

  // The whole tensors are one slice, which every rank has copied in by arriving.
  void run_in_place() {
    slices_.slice_elems = slices_.total_elems;
    // A peer that this rank does not touch may go on, and give up its memory, at any time.
    memories_.assign(group_.size(), nullptr);
    for (const RankSchedule::Step& step : rank_schedule_.steps)
      for (int peer : step.copied)
        if (!memories_[peer]) memories_[peer] = group_.announced_memory(peer);
    group_.advance_copied(1);
    for (size_t step = 0; step < rank_schedule_.steps.size(); ++step) execute(0, step);
    wait_for(rank_schedule_.touched, 0);
    // A peer that gave up said so before it wrote to its tensor again. This rank has read that tensor before it said so
    // (advance_done), and looks after that; both are sequentially consistent.
    group_.check_peers();
  }

  void copy_in(int64_t slice) {
    if (slice >= kSlots) wait_for(rank_schedule_.touched, slice - kSlots);
    for (int shard : rank_schedule_.copy_in)
      each_row(slice, shard, [&](const Item& item, int64_t at, int64_t begin, int64_t elems) {
        executor_.copy(staged(rank_schedule_.rank, shard, slice, at), local(item.in[shard], begin), elems);
      });
    executor_.flush();
  }

  void tell_copied(int64_t slice) {
    finish();
    group_.advance_copied(slice + 1);
  }

  void execute(int64_t slice, size_t number) {
    const RankSchedule::Step& step = rank_schedule_.steps[number];
    const Instruction& x = *step.instruction;
    for (int peer : step.copied) group_.wait_copied(peer, slice + 1);
    wait_for(step.done, slice);
    each_row(slice, x.shard, [&](const Item& item, int64_t at, int64_t begin, int64_t elems) {
      for (const std::vector<int>* buffers : {&x.srcs, &x.dsts})
        for (int buffer : *buffers) pointers_[buffer] = address(buffer, x.shard, item, slice, at, begin);
      executor_.execute(x, pointers_.data(), elems);
    });
    executor_.flush();
    finish();
    group_.advance_done(slice * rank_schedule_.steps.size() + number + 1);
  }

  // The one slice of a small call.
  Table table() const {
    Table table{call_.dtype, call_.op, call_.elem_bytes, {}, {}};
    for (int shard = 0; shard < schedule_.shards; ++shard)
      each_row(0, shard, [&](const Item& item, int64_t at, int64_t begin, int64_t elems) {
        table.rows.push_back({shard, elems, table.pointers.size()});
        for (int buffer = 0; buffer < schedule_.buffers; ++buffer) {
          const bool reached =
              rank_schedule_.shared(buffer, shard) || rank_schedule_.owner(buffer) == rank_schedule_.rank;
          table.pointers.push_back(reached ? address(buffer, shard, item, 0, at, begin) : nullptr);
        }
        table.pointers.push_back(local(item.in[shard], begin));
      });
    return table;
  }

  void copy_out(int64_t slice) {
    wait_for(rank_schedule_.written, slice);
    for (int shard : rank_schedule_.copy_out)
      each_row(slice, shard, [&](const Item& item, int64_t at, int64_t begin, int64_t elems) {
        executor_.copy(local(item.in[shard], begin), staged(rank_schedule_.rank, shard, slice, at), elems);
      });
    executor_.flush();
  }

  void finish() {
    if (!executor_.idle()) group_.wait_here([this] { return executor_.idle(); });
  }

  void wait_for(const std::vector<RankSchedule::Wait>& waits, int64_t slice) {
    for (const RankSchedule::Wait& wait : waits)
      group_.wait_done(wait.rank, slice * rank_schedule_.counts[wait.rank] + wait.done);
  }

  // Calls visit(item, element within the slice's shard, element within the item's shard, elements).
  template <class Visit>
  void each_row(int64_t slice, int shard, const Visit& visit) const {
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

  std::byte* address(int buffer, int shard, const Item& item, int64_t slice, int64_t at, int64_t begin) const {
    const int owner = rank_schedule_.owner(buffer);
    const Span& span = (buffer < schedule_.ranks ? item.in : item.out)[shard];
    if (!memories_.empty() && owner != rank_schedule_.rank)
      return memories_[owner] + (span.offset_elems + begin) * call_.elem_bytes;
    if (memories_.empty() && rank_schedule_.shared(buffer, shard)) return staged(owner, shard, slice, at);
    return local(span, begin);
  }

  std::byte* local(const Span& span, int64_t begin) const { return span.data + begin * call_.elem_bytes; }

  std::byte* staged(int rank, int shard, int64_t slice, int64_t at) const {
    const int64_t slot = slice % kSlots * schedule_.shards + shard;
    return executor_.staging(rank) + (slot * slices_.slice_elems + at) * call_.elem_bytes;
  }

  Group& group_;
  const FlagsCall& call_;
  Executor& executor_;
  const RankSchedule& rank_schedule_;
  const Schedule& schedule_;
  Slices slices_;
  std::vector<std::byte*> pointers_;  // by buffer
  std::vector<std::byte*> memories_;  // by rank, if peers work on the tensors themselves
};

}  // namespace

const size_t kStagingBytes = kSlots * kSliceBytes;

void run_flags(Group& group, const FlagsCall& call) {
  CpuExecutor executor(group, call);
  SlicedRun run(group, call, executor);
  group.begin(call.timeout);
  run.run([] { return true; }, false);
}

bool run_flags(Group& group, const FlagsCall& call, Executor& executor, const std::function<bool()>& joined) {
  SlicedRun run(group, call, executor);
  group.begin(call.timeout);
  return run.run(joined, true);
}

}  // namespace fastreduce
