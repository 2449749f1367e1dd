#include "simulation/stages.h"

namespace fastreduce::simulation {

Stages::Stages(const Tasks& tasks, int slices) : tasks_(tasks), slices_(slices) {
  for (size_t number = 0; number < tasks.tasks.size(); ++number) {
    const Task& task = tasks.tasks[number];
    first_.push_back(size());
    first_transfer_.push_back(transfers_);
    task_of_.insert(task_of_.end(), int64_t{slices} * task.phases(), static_cast<int>(number));
    transfers_ += int64_t{slices} * (task.end - task.reads);
  }
}

int Stages::waits(int stage) const {
  const auto [number, slice, reads] = (*this)[stage];
  const Task& task = tasks_.tasks[number];
  if (!reads) return 1 + (slice > 0);
  const bool after_own = slice > 0 || task.previous != Task::kNone;
  return static_cast<int>(tasks_.before[number].size()) + after_own;
}

}  // namespace fastreduce::simulation
