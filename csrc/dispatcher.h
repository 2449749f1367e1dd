// The way of torch.compile, fake tensors and tensor subclasses: one operator that torch can place in a
// graph, fastreduce::collective_ over flat lists.
#pragma once

#include "call.h"

namespace fastreduce {

// Whether some tensor is not a plain one, or somebody wants to see every operation.
bool needs_dispatcher(const Call& call);

void dispatch(const Call& call);

}  // namespace fastreduce
