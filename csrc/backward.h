// The backward pass of several shards at the same time.
#pragma once

#include <torch/csrc/autograd/function.h>

#include <vector>

#include "call.h"

namespace fastreduce {

// Goes backward from one loss per shard in two steps: to the parameters of the replicas, for which every shard may have
// a thread of its own, and from there, summed by the nodes of `replicate`, to the module's.
class BackwardOfShards {
 public:
  // Each loss is a tensor of one element.
  explicit BackwardOfShards(Tensors losses);

  // Whether the shards may go backward at the same time: their graphs consist of torch's own operations without hooks,
  // and meet, or lead to leaves, nowhere but in those sums.
  bool is_apart() const { return ends_.size() == losses_.size(); }

  // The first step of one shard. Errors of torch and of Python come through.
  void run(size_t shard);

  // The second step, when all shards have run.
  void sum();

 private:
  Tensors losses_;
  std::vector<torch::autograd::edge_list> ends_;  // of each shard: the inputs of sums to which it leads
  std::vector<Tensors> grads_;                    // of each shard, for these inputs
};

}  // namespace fastreduce
