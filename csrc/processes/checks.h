// Checks of a rank's tensors, made before its peers hear of the call. Those without a result throw.
#pragma once

#include "call.h"
#include "dtypes.h"
#include "processes/items.h"

namespace fastreduce {

// The operation that the kernels do for `op`. It is the sum for averages of integers, which NCCL has and which no
// kernel does: that sum is divided later.
c10d::ReduceOp folded(const c10d::ReduceOp& op, at::ScalarType type);

// The dtype and operation by which the kernels see the tensors. Throws unless all are dense tensors of one dtype, for
// which the operation is defined, and on one CPU or CUDA device.
Arithmetic check_call(Collective collective, const c10d::ReduceOp& op, const Tensors& tensors);

// The tensors' dtype. Throws unless all are dense, of one dtype and on one device.
at::ScalarType check_tensors(const Tensors& tensors);

// No two tensors of this rank, all of which are written, may share memory.
void check_apart(int rank, const Tensors& tensors);

// Each element of these tensors, which are written, must have memory of its own.
void check_written(const Tensors& tensors);

// For calls that Gloo does: it would read a GPU's memory as if it were the CPU's.
void check_on_cpu(const char* call, const Tensors& tensors);

// For calls in which Gloo writes the tensors after the call has returned.
void check_contiguous(const std::string& call, const Tensors& tensors);

// For a sum of sparse tensors, which Gloo does.
void check_sparse(const c10d::ReduceOp& op, const at::Tensor& tensor);

// For gather and scatter: every rank passes one tensor, and the root also a list with a tensor of that length per rank.
void check_one_for_each(const char* call, const char* one_name, const char* list_name, const Tensors& one,
                        const std::vector<Tensors>& lists, int ranks, bool is_root);

// For all_gather and reduce_scatter: the inputs and outputs of each item must fit together.
void check_lengths(Collective collective, int ranks, const std::vector<Tensors>& inputs,
                   const std::vector<Tensors>& outputs);

}  // namespace fastreduce
