// What a rank's tensors must be, before its peers hear of the call.
#pragma once

#include "call.h"
#include "dtypes.h"
#include "processes/items.h"

namespace fastreduce {

bool moves_only(Collective collective);
// Whether tensors hold one shard: the results are in other tensors than what is read.
bool by_shard(Collective collective);

// Throws if the operation is not defined for the dtype.
Arithmetic arithmetic_of(Collective collective, Op op, at::ScalarType type);
void check_factor(const c10d::ReduceOp& op, at::ScalarType type);

// Their dtype. Throws unless all are dense CPU tensors of one dtype.
at::ScalarType check_tensors(const Tensors& tensors);

// Of all_gather and reduce_scatter, by item: whether inputs and outputs fit together.
void check_lengths(Collective collective, int ranks, const std::vector<Tensors>& inputs,
                   const std::vector<Tensors>& outputs);

}  // namespace fastreduce
