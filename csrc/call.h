// One call of a collective, from the user's tensors to the engine and back.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string>
#include <vector>

#include "engine.h"

namespace fastreduce {

using Tensors = std::vector<at::Tensor>;

enum class Collective { allreduce, reduce, broadcast, reduce_scatter, all_gather };

inline bool moves_only(Collective collective) {
  return collective == Collective::broadcast || collective == Collective::all_gather;
}

// Whether a rank's input or output is one shard, so that results are in other tensors than what is read. All others
// work in place.
inline bool by_shard(Collective collective) {
  return collective == Collective::reduce_scatter || collective == Collective::all_gather;
}

// `per_rank` tensors of rank 0, then those of rank 1, and so on.
struct TensorLists {
  const char* name = "tensors";
  Tensors flat;
  int64_t ranks = 0;
  int64_t per_rank = 0;
  int64_t first_rank = 0;  // as errors call it, where these are the tensors of one rank among several processes

  const at::Tensor& at(int64_t rank, int64_t index) const { return flat[rank * per_rank + index]; }
  std::string where(int64_t rank, int64_t index) const;  // for error messages
};

// The arguments of a call. Collectives that work in place have no inputs.
struct Call {
  Collective collective = Collective::allreduce;
  TensorLists outputs;
  TensorLists inputs;
  Op op = Op::sum;
  int64_t root = 0;
  std::string algorithm = "auto";
  std::string engine_name = "auto";
  std::optional<std::string> variable = {};  // FASTREDUCE_ALGORITHM, where it has been read for this call

  int64_t ranks() const { return outputs.ranks; }
  Devices devices() const;  // of a checked call
  Engine& engine() const;   // of a checked call
  int64_t nbytes() const;   // of one rank's outputs
};

Collective parse_collective(const std::string& name);
const char* name_of(Collective collective);
Op parse_op(const std::string& name);
std::optional<Op> find_op(const std::string& name);  // none if there is no such operation

// Everything that a call does, in order. With torch's dispatcher (dispatcher.h), the parts below are called where
// torch needs them.
void run(const Call& call);

// The parts: which outputs are written (autograd must allow it), the work, and marking tensors as changed.
std::vector<bool> written_outputs(const Call& call, const Schedule& schedule);
void execute(const Call& call, const Schedule& schedule);
void bump_versions(const TensorLists& lists, const std::vector<bool>& written);

}  // namespace fastreduce
