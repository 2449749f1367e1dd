// For torch.compile, fake tensors and tensor subclasses: an operator that torch can place in a graph,
// fastreduce::collective_, with flat lists of tensors.
#pragma once

#include "call.h"

namespace fastreduce {

// Whether a tensor is a subclass or wrapped, or a mode wants to see every operation.
bool needs_dispatcher(const Call& call);

void dispatch(const Call& call);

}  // namespace fastreduce
