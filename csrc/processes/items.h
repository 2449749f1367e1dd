// Torch's tensors as the items that the engine for processes works on.
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

// The shards of one tensor that holds all of them, or of one tensor for each shard.
std::vector<Span> all_shards(const Tensors& tensors, int64_t shards, int64_t part_elems, const Arithmetic& kernel,
                             int64_t elem_bytes);
// The same for a tensor that is one of the shards; the others are empty.
std::vector<Span> one_shard(const Tensors& tensors, int64_t shards, int shard, const Arithmetic& kernel);

// Whether writing the result of one item would overwrite an input that is still to be read. `wholes` are tensors that
// hold all shards (one tensor, or one for each shard), `parts` those that hold this rank's shard. A part that lies at
// its own place in its whole does no harm.
bool in_the_way(const std::vector<Tensors>& wholes, const std::vector<Tensors>& parts, int rank);

// Announces the tensor's memory, if peers can reach it: then they work on the tensor itself.
void announce(const at::Tensor& tensor, Announcement& announcement);
// Runs a call that has announced this tensor.
void run_announced(Group& group, const FlagsCall& call, const at::Tensor& tensor);

// Tensors that the engine can use. Those that are not contiguous, that the operation scales first, or that are on GPUs
// which peers cannot reach are replaced by copies, the last in shared memory; results are written back from them.
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
