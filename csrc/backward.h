// The backward pass of several shards at the same time.
#pragma once

#include <torch/csrc/autograd/function.h>

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "call.h"

namespace fastreduce {

// One backward pass through the graphs of all shards.
class ShardsBackward {
 public:
  // The places in the graph of each shard's outputs, and of the parameters with which it ran.
  struct Ends {
    std::vector<torch::autograd::edge_list> outputs, parameters;
  };

  // Part of autograd's pass that this thread is in. `grads` are those of all outputs, of one shard after the other;
  // `ends` must outlive the object.
  ShardsBackward(const Ends& ends, Tensors&& grads);

  size_t shards() const { return ends_.outputs.size(); }

  // Whether the gradients shall be differentiated again.
  bool creates_graph() const { return create_graph_; }

  // Whether they may run at the same time: their graphs consist of torch's own operations without hooks, and meet, or
  // lead to leaves, nowhere but in the sums behind their parameters.
  bool are_apart() const;

  // Goes backward through one of them. Errors of torch and of Python come through.
  void run(size_t shard);

  // The gradients of all parameters, when all shards have run.
  Tensors end();

 private:
  const Ends& ends_;
  const bool keep_graph_, create_graph_;
  std::vector<Tensors> of_outputs_, of_parameters_;
};

using RunShards = std::function<void(std::shared_ptr<ShardsBackward>)>;

// The outputs of each shard, on the same memory, from which autograd goes backward by one call of `run_shards`. Nothing
// if the shards are not apart. `parameters` are results of `replicate`; they and `outputs` require gradients.
std::optional<std::vector<Tensors>> going_backward_by(RunShards run_shards, const std::vector<Tensors>& outputs,
                                                      const std::vector<Tensors>& parameters);

}  // namespace fastreduce
