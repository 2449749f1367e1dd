#include "simulation/tasks.h"

#include <algorithm>
#include <unordered_map>

#include "schedule.h"

namespace fastreduce::simulation {
namespace {

class TaskBuilder {
 public:
  TaskBuilder(const FlatProgram& program, std::span<const int> node_of, int host, bool by_kernels)
      : program_(program), node_of_(node_of), host_(host), by_kernels_(by_kernels) {}

  void add(int first, int end) {
    Task task{executor(first), count(), 0, 0, Task::kNone, Task::kNone, false};
    for (int index = first; index < end; ++index) add_reads(index);
    task.writes = count();
    for (int index = first; index < end; ++index) add_writes(index);
    task.end = count();
    task.streams = by_kernels_ && !is_staged(first) && task.phases() == 2;
    const int number = static_cast<int>(made.tasks.size());
    if (const auto last = last_of_lane_.find(task.lane); last != last_of_lane_.end()) {
      task.previous = last->second;
      made.tasks[task.previous].next = number;
    }
    last_of_lane_[task.lane] = number;
    made.tasks.push_back(task);
  }

  Tasks made;

 private:
  int count() const { return static_cast<int>(made.transfers.size()); }
  bool is_staged(int index) const { return by_kernels_ && program_.rank[index] == kHost; }
  int executor(int index) const {
    if (program_.rank[index] == kHost) return by_kernels_ ? node_of_[0] : host_;
    return node_of_[program_.rank[index]];
  }

  // A copy that the source's or the destination's device executes: its memory is on the way anyway.
  bool goes_straight(int index) const {
    const auto srcs = program_.srcs[index], dsts = program_.dsts[index];
    if (srcs.size() != 1 || dsts.size() != 1 || is_staged(index)) return false;
    const int src = node_of_[srcs[0]], dst = node_of_[dsts[0]], lane = executor(index);
    return src != dst && (lane == src || lane == dst);
  }

  // Transfers of sources to the executor, and in its memory: sources read, the result written.
  void add_reads(int index) {
    const auto srcs = program_.srcs[index];
    const int lane = executor(index);
    if (goes_straight(index))
      return add_transfer(index, node_of_[srcs[0]], node_of_[program_.dsts[index][0]], 1, Transfer::kStraight);
    for (int src : srcs) add_move(index, node_of_[src], lane, src);
    add_transfer(index, lane, lane, static_cast<int>(srcs.size()) + 1, Transfer::kAll);
  }

  // Transfers of results from the executor to destinations on other nodes.
  void add_writes(int index) {
    if (goes_straight(index)) return;
    const int lane = executor(index);
    for (int dst : program_.dsts[index]) add_move(index, lane, node_of_[dst], dst);
  }

  // What is staged passes through the host's memory, one half of which fills while the other empties.
  void add_move(int index, int src, int dst, int buffer) {
    if (!is_staged(index)) {
      if (src != dst) add_transfer(index, src, dst, 1, buffer);
      return;
    }
    add_transfer(index, src, host_, 1, buffer);
    add_transfer(index, host_, host_, 2, buffer);
    add_transfer(index, host_, dst, 1, buffer);
  }

  void add_transfer(int index, int src, int dst, int times, int buffer) {
    const int64_t key = (int64_t{src} << 32) | dst;
    const auto [found, is_new] = pair_of_.try_emplace(key, static_cast<int>(made.pairs.size()));
    if (is_new) made.pairs.emplace_back(src, dst);
    made.transfers.push_back({found->second, program_.shard[index], times, index, buffer});
  }

  const FlatProgram& program_;
  std::span<const int> node_of_;
  const int host_;
  const bool by_kernels_;
  std::unordered_map<int64_t, int> pair_of_;
  std::unordered_map<int, int> last_of_lane_;
};

Lists reversed(const Lists& before) {
  std::vector<std::vector<int>> after(before.size());
  for (int64_t later = 0; later < before.size(); ++later)
    for (int earlier : before[later]) after[earlier].push_back(static_cast<int>(later));
  Lists found;
  found.reserve(after.size());
  for (const auto& list : after) found.add(list);
  return found;
}

}  // namespace

Tasks tasks_of(const FlatProgram& program, const Lists& waits, const std::vector<int>& launches,
               std::span<const int> node_of, int host, bool by_kernels) {
  TaskBuilder builder(program, node_of, host, by_kernels);
  std::vector<int> task_of(program.size());
  std::vector<int> before;
  for (size_t number = 0; number + 1 < launches.size(); ++number) {
    const int first = launches[number], end = launches[number + 1];
    before.clear();
    for (int index = first; index < end; ++index) {
      task_of[index] = static_cast<int>(number);
      for (int wait : waits[index]) before.push_back(task_of[wait]);
    }
    std::sort(before.begin(), before.end());
    before.erase(std::unique(before.begin(), before.end()), before.end());
    builder.add(first, end);
    builder.made.before.add(before);
  }
  builder.made.after = reversed(builder.made.before);
  return std::move(builder.made);
}

}  // namespace fastreduce::simulation
