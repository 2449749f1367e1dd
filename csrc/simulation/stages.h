// Tasks played in slices: which stage begins after which.
#pragma once

#include "simulation/tasks.h"

namespace fastreduce::simulation {

// A stage is a task's reads, or its writes where it has some, for one slice. Stages are numbered by task, by slice,
// reads before writes; transfers in the order of their stages.
class Stages {
 public:
  struct Stage {
    int task;
    int slice;
    bool reads;
  };

  Stages(const Tasks& tasks, int slices);

  int size() const { return static_cast<int>(task_of_.size()); }
  int64_t transfers() const { return transfers_; }

  Stage operator[](int number) const {
    const int task = task_of_[number], phases = tasks_.tasks[task].phases(), offset = number - first_[task];
    return {task, offset / phases, phases == 1 || offset % phases == 0};
  }
  // Whether the stage reads what the next one writes meanwhile.
  bool feeds_next(int stage) const { return tasks_.tasks[task_of_[stage]].streams && (*this)[stage].reads; }
  int lane(int stage) const { return tasks_.tasks[task_of_[stage]].lane; }

  // The number of the transfer that is tasks.transfers[transfer], in this stage's slice.
  int64_t number_of(const Stage& stage, int transfer) const {
    const Task& task = tasks_.tasks[stage.task];
    return first_transfer_[stage.task] + int64_t{stage.slice} * (task.end - task.reads) + transfer - task.reads;
  }

  // How many stages must end before it begins.
  int waits(int stage) const;

  // Calls `then` with each stage that waits for this one's end. Reads wait for the tasks that theirs depends on, for
  // the lane's launch before, and for the task's reads of the slice before. Writes wait for the reads of their slice
  // (if the task streams, for their first bytes only) and for the writes of the slice before. So a lane reads one slice
  // while it writes the one before.
  template <class Then>
  void followers(int stage, const Then& then) const {
    const auto [number, slice, reads] = (*this)[stage];
    const Task& task = tasks_.tasks[number];
    const bool more = slice + 1 < slices_, last_phase = !reads || task.phases() == 1;
    if (!last_phase && !task.streams) then(stage + 1);
    if (more) then(stage + task.phases());
    if (!last_phase) return;
    for (int later : tasks_.after[number]) then(first_[later] + slice * tasks_.tasks[later].phases());
    if (!more && task.next != Task::kNone) then(first_[task.next]);
  }

 private:
  const Tasks& tasks_;
  const int slices_;
  int64_t transfers_ = 0;
  std::vector<int> task_of_;             // by stage
  std::vector<int> first_;               // stage, by task
  std::vector<int64_t> first_transfer_;  // by task
};

}  // namespace fastreduce::simulation
