// An allreduce over several machines: ours inside each, another backend between them.
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "processes/group.h"
#include "processes/items.h"
#include "processes/plan.h"

namespace fastreduce {

// Inside each machine a reduce_scatter, between machines an allreduce of each rank's shard, inside an all_gather. So
// all ranks of a machine send and receive at the same time, each with its peer of the same number elsewhere. Large
// tensors go in chunks: while one is between machines, the next is reduced.
class Machines {
 public:
  struct Settings {
    std::vector<std::string> names;            // of the machines
    std::vector<std::vector<int>> ranks;       // by machine, as `all` numbers them
    c10::intrusive_ptr<c10d::Backend> across;  // this rank and those of its number in other machines
    c10::intrusive_ptr<c10d::Backend> all;
  };
  Machines(Group& group, Settings settings);

  // In place, on a contiguous tensor.
  void allreduce(const at::Tensor& tensor, const c10d::ReduceOp& op, const Announcement& announcement,
                 std::chrono::milliseconds timeout);

 private:
  struct Chunk;

  void run_inside(const RankPlan& plan, Chunk& chunk);
  void start_across(Chunk& chunk);
  void finish(Chunk& chunk);
  std::string silent_machines() const;

  Group& group_;
  const Settings settings_;
  const RankPlan reduce_scatter_;
  const RankPlan all_gather_;
};

}  // namespace fastreduce
