// Torch's tensors as the engine takes them.
#pragma once

#include <string>
#include <torch/csrc/distributed/c10d/Types.hpp>
#include <utility>
#include <vector>

#include "call.h"
#include "dtypes.h"
#include "processes/flags.h"

namespace fastreduce {

Op op_of(const c10d::ReduceOp& op);
int64_t elems_of(const Tensors& tensors);
std::string words_of(const at::Tensor& tensor);  // dtype and sizes
Tensors flat(const std::vector<Tensors>& lists);
std::vector<Tensors> each_alone(const Tensors& tensors);

// Of one tensor that holds all shards, or one tensor for each.
std::vector<Span> all_shards(const Tensors& tensors, int64_t shards, int64_t part_elems, const Arithmetic& kernel,
                             int64_t elem_bytes);
// Of a tensor that is one shard.
std::vector<Span> one_shard(const Tensors& tensors, int64_t shards, int shard, const Arithmetic& kernel);

// Whether writing one item's result would overwrite what is still to be read. `wholes` are tensors that hold all shards
// (one tensor, or one for each shard), `parts` those of this rank's shard. A part at its own place in its whole is not
// in the way.
bool in_the_way(const std::vector<Tensors>& wholes, const std::vector<Tensors>& parts, int rank);

// Lets peers work on the tensor itself, if they can reach its memory.
void announce(const at::Tensor& tensor, Announcement& announcement);
// Runs a call in which they may.
void run_announced(Group& group, const FlagsCall& call, const at::Tensor& tensor);

// Contiguous tensors in place of those that are not, scaled where the operation says so, and tensors in shared memory
// in place of those on GPUs that peers cannot reach. What is written in them is written back.
class Usable {
 public:
  explicit Usable(bool reached = true) : reached_(reached) {}
  Tensors read(const Tensors& tensors, const c10d::ReduceOp& op);
  Tensors written(const Tensors& tensors, const c10d::ReduceOp& op = c10d::ReduceOp::SUM);
  void write_back() const;

 private:
  const bool reached_;
  std::vector<std::pair<at::Tensor, at::Tensor>> copies_;
};

}  // namespace fastreduce
