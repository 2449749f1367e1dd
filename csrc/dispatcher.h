// For torch.compile, fake tensors and tensor subclasses: an operator that torch can place in a graph,
// fastreduce::collective_, with flat lists of tensors.
#pragma once

#include "call.h"

namespace fastreduce {

// Runs a call from Python: recorded for torch's profiler, and by the operator where torch must see it.
void run_for_torch(const Call& call);

// Whether a mode, or a trace of torch.jit, is to see every operation of this thread.
bool is_watched();

}  // namespace fastreduce
