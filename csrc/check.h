// Every rule about tensor lists. Nothing is written before all of them have been checked.
#pragma once

#include "call.h"
#include "dtypes.h"

namespace fastreduce {

// Throws c10::ValueError naming rank and tensor, what was found, what was wanted.
void check(const Call& call);

// The part of it for which tensors need no memory: fake ones have none.
void check_arguments(const Call& call);

// How many elements lie between the first in memory and the last, with both, in a tensor that is not empty.
int64_t span_elems(const at::Tensor& tensor);

// Whether its storage, which may have been freed or made smaller since, still has all its elements.
bool has_memory(const at::Tensor& tensor);

// Whether it only stands for a tensor, where torch traces: it has no memory, and nothing is written.
bool is_fake(const at::Tensor& tensor);

// No two tensors share memory, and no tensor overlaps itself. (A rank's own output may be its
// shard of the input of reduce_scatter, or the reverse for all_gather, as in NCCL.)
void check_overlap(const Call& call);

// Throws c10::Error, in torch's words, if autograd could not follow an in-place write.
void check_autograd(const TensorLists& lists, const std::vector<bool>& written);

// The part of it that concerns inference tensors, which autograd does not know.
void check_inference(const TensorLists& lists, const std::vector<bool>& written);

// How the kernels see tensor `index`; throws if the call's operation is not defined for its dtype.
Arithmetic arithmetic_of(const Call& call, int64_t index);

}  // namespace fastreduce
