// A program's instructions as plain arrays, and what follows from them alone. Nothing here needs Python or torch.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace fastreduce::simulation {

// Lists of ints of different lengths, one after the other.
class Lists {
 public:
  void add(std::span<const int> list) {
    items_.insert(items_.end(), list.begin(), list.end());
    ends_.push_back(static_cast<int64_t>(items_.size()));
  }
  void reserve(size_t lists) { ends_.reserve(lists); }
  int64_t size() const { return static_cast<int64_t>(ends_.size()); }
  int64_t items() const { return static_cast<int64_t>(items_.size()); }
  int64_t begin_of(int64_t index) const { return index ? ends_[index - 1] : 0; }
  std::span<const int> operator[](int64_t index) const {
    return {items_.data() + begin_of(index), items_.data() + ends_[index]};
  }

 private:
  std::vector<int> items_;
  std::vector<int64_t> ends_;
};

// Well-formed: ranks (or kHost), shards and buffers are in range, and no list is empty.
struct FlatProgram {
  int ranks = 0;
  int shards = 0;
  int buffers = 0;
  std::vector<int> rank;  // by instruction, as the three below
  std::vector<int> shard;
  Lists srcs;
  Lists dsts;

  int64_t size() const { return static_cast<int64_t>(rank.size()); }
};

// The instructions of each shard, in the program's order: shards share no memory.
Lists by_shard(const FlatProgram& program);

// For each instruction, the earlier ones that it must come after, ascending (fastreduce.Program.dependencies).
Lists dependencies(const FlatProgram& program);

// The first instruction of each launch (fastreduce.Program.launches), and the number of instructions as the last item.
std::vector<int> launches(const FlatProgram& program, const Lists& waits);

// What slices can save at most, in the time of one shard, divided by the launches of the rank that has the most.
// Without slices steps follow each other; with many, the busiest rank works all the time: the difference is saved.
// Shards pass a rank's port one by one. 0 if some rank always works, as in a ring.
double idle_shards(const FlatProgram& program, const Lists& waits, const std::vector<int>& launches);

// Called now and then by what takes long; it throws if the caller is to stop.
using Pause = std::function<void()>;

// Calls a pause after so many steps that a few milliseconds may have passed (predicted).
class Pacer {
 public:
  explicit Pacer(const Pause& pause) : pause_(pause) {}
  void count(int64_t steps) {
    steps_ += steps;
    if (steps_ < kSteps) return;
    steps_ = 0;
    pause_();
  }

 private:
  static constexpr int64_t kSteps = 1 << 20;
  const Pause& pause_;
  int64_t steps_ = 0;
};

}  // namespace fastreduce::simulation
