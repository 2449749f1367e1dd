// What a rank's tensors must be, before its peers hear of the call.
#pragma once

#include "call.h"
#include "dtypes.h"
#include "processes/items.h"

namespace fastreduce {

// How the kernels see the tensors. Throws unless all are dense tensors of one dtype on one CPU or CUDA device, for
// which the operation is defined.
Arithmetic check_call(Collective collective, const c10d::ReduceOp& op, const Tensors& tensors);

// Whether each element of these, which are written, has memory of its own.
void check_written(const Tensors& tensors);

// Of calls that Gloo does, which would read a GPU's memory as if it were the CPU's.
void check_on_cpu(const char* call, const Tensors& tensors);

// Of all_gather and reduce_scatter, by item: whether inputs and outputs fit together.
void check_lengths(Collective collective, int ranks, const std::vector<Tensors>& inputs,
                   const std::vector<Tensors>& outputs);

}  // namespace fastreduce
