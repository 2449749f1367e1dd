// The parameters of a model's replicas, joined to the model's own by autograd.
#pragma once

#include <torch/csrc/autograd/function.h>

#include <string>
#include <vector>

#include "call.h"

namespace fastreduce {

// `memories` holds, for each replica, the values of `params` on its device; it may be the params' own memory. Returns
// tensors on the same memory, which autograd takes for results of an operation on `params`: the backward pass waits
// until it has the gradients of all replicas, sums them by one `reduce`, in ascending order of the replicas, and gives
// the sum to `params`, on their device. A replica that has not used a parameter adds nothing; if none has, the
// parameter gets no gradient. `name` is the operation's in profiles and errors. Sparse gradients, and those that shall
// be differentiated again, are summed by torch.
std::vector<Tensors> replicate(const Tensors& params, const std::vector<Tensors>& memories, const std::string& name);

// Whether it is the operation of `replicate`. Its inputs are the parameters of all replicas.
bool sums_over_replicas(const torch::autograd::Node& node);

}  // namespace fastreduce
