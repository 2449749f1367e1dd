// Every rule about tensor lists. Nothing is written before all of them have been checked.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "schedule.h"

namespace fastreduce {

enum class Collective { allreduce, reduce, broadcast, reduce_scatter, all_gather };

// `per_rank` tensors of each rank, rank after rank.
struct TensorLists {
  const char* name = "tensors";
  std::vector<at::Tensor> flat;
  int64_t ranks = 0;
  int64_t per_rank = 0;

  const at::Tensor& at(int64_t rank, int64_t index) const { return flat[rank * per_rank + index]; }
  std::string where(int64_t rank, int64_t index) const;
};

// What the user asked for. Collectives that work in place have no inputs.
struct Call {
  Collective collective;
  TensorLists outputs;
  TensorLists inputs;
  Op op = Op::sum;
  int64_t root = 0;

  int64_t ranks() const { return outputs.ranks; }
  bool on_cuda() const { return !outputs.flat.empty() && outputs.flat.front().is_cuda(); }
  bool moves_only() const {
    return collective == Collective::broadcast || collective == Collective::all_gather;
  }
};

Collective parse_collective(const std::string& name);
const char* name_of(Collective collective);
Op parse_op(const std::string& name);

// How the kernels see one torch element under one operation: `per_elem` elements of `dtype`.
struct Arithmetic {
  DType dtype;
  Op op;
  int64_t per_elem;
};
Arithmetic arithmetic(const Call& call, at::ScalarType type, int64_t index);

// Throws c10::ValueError naming rank and tensor, what was found, what was wanted.
void check(const Call& call);

// No two tensors share memory, and no tensor overlaps itself. (A rank's own output may be its
// shard of the input of reduce_scatter, or the reverse for all_gather, as in NCCL.)
void check_overlap(const Call& call);

// Throws c10::Error in torch's words where autograd could not follow an in-place write.
void check_autograd(const TensorLists& lists, const std::vector<bool>& written);

}  // namespace fastreduce
