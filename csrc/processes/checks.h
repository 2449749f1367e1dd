// What a rank's tensors must be, before its peers hear of the call.
#pragma once

#include "call.h"
#include "dtypes.h"
#include "processes/items.h"

namespace fastreduce {

// The operation of the kernels. None divides integers, whose average NCCL has: it is their sum, to be divided later.
c10d::ReduceOp folded(const c10d::ReduceOp& op, at::ScalarType type);

// How the kernels see the tensors. Throws unless all are dense tensors of one dtype on one CPU or CUDA device, for
// which the operation is defined.
Arithmetic check_call(Collective collective, const c10d::ReduceOp& op, const Tensors& tensors);

// The dtype of tensors that are dense, and of one dtype and device.
at::ScalarType check_tensors(const Tensors& tensors);

// Whether no two tensors of this rank, which are all written, share memory.
void check_apart(int rank, const Tensors& tensors);

// Whether each element of these, which are written, has memory of its own.
void check_written(const Tensors& tensors);

// Of calls that Gloo does, which would read a GPU's memory as if it were the CPU's.
void check_on_cpu(const char* call, const Tensors& tensors);

// Of calls in which Gloo writes the tensors after the call has returned.
void check_contiguous(const std::string& call, const Tensors& tensors);

// Of a sum of sparse tensors, which Gloo does.
void check_sparse(const c10d::ReduceOp& op, const at::Tensor& tensor);

// Of gather and scatter: one tensor, and on the root a list of one as long for each rank.
void check_one_for_each(const char* call, const char* one_name, const char* list_name, const Tensors& one,
                        const std::vector<Tensors>& lists, int ranks, bool is_root);

// Of all_gather and reduce_scatter, by item: whether inputs and outputs fit together.
void check_lengths(Collective collective, int ranks, const std::vector<Tensors>& inputs,
                   const std::vector<Tensors>& outputs);

}  // namespace fastreduce
