// The collectives without programs, by torch's names. Gloo does them, after the ranks have agreed on the call.
#include <ATen/ops/cat.h>
#include <ATen/ops/split_with_sizes.h>
#include <c10/core/InferenceMode.h>
#include <c10/util/hash.h>

#include <cstring>
#include <numeric>

#include "processes/backend.h"
#include "processes/checks.h"
#include "processes/gloo.h"
#include "processes/items.h"

namespace fastreduce {
namespace {

using c10d::OpType;

Tensors all_of(Tensors some, const Tensors& others) {
  some.insert(some.end(), others.begin(), others.end());
  return some;
}

std::vector<int64_t> elems_by_rank(const Tensors& tensors) {
  std::vector<int64_t> elems;
  for (const at::Tensor& tensor : tensors) elems.push_back(tensor.numel());
  return elems;
}

// The same for one tensor that is cut along its first dimension.
std::vector<int64_t> elems_by_rank(const char* name, const at::Tensor& tensor, std::vector<int64_t> rows, int ranks) {
  TORCH_CHECK_VALUE(tensor.dim() > 0, "the ", name, " of all_to_all has no dimension; want one that is cut");
  const int64_t all = tensor.size(0);
  TORCH_CHECK_VALUE(!rows.empty() || all % ranks == 0, "the ", name, " of all_to_all has ", all, " rows for ", ranks,
                    " ranks; want as many for each, or ", name, "_split_sizes");
  if (rows.empty()) rows.assign(ranks, all / ranks);
  int64_t sum = 0;
  bool fits = rows.size() == static_cast<size_t>(ranks);
  for (const int64_t count : rows) {
    fits = fits && count >= 0 && count <= all - sum;
    sum += fits ? count : 0;
  }
  TORCH_CHECK_VALUE(fits && sum == all, name, "_split_sizes of all_to_all are ", c10::IntArrayRef(rows), "; want ",
                    ranks, " numbers that sum to the ", all, " rows of the ", name);
  for (int64_t& count : rows) count *= all > 0 ? tensor.numel() / all : 0;
  return rows;
}

std::vector<int64_t> times(std::vector<int64_t> elems, int64_t elem_bytes) {
  for (int64_t& count : elems) count *= elem_bytes;
  return elems;
}

std::vector<int64_t> both(std::vector<int64_t> sent, const std::vector<int64_t>& taken) {
  sent.insert(sent.end(), taken.begin(), taken.end());
  return sent;
}

}  // namespace

ProcessBackend::Work ProcessBackend::delegate(const Kind& kind, const std::string& words, const Tensors& inputs,
                                              const Tensors& outputs, Moves moves,
                                              const std::vector<int64_t>& lengths) {
  const bool dense = kind.type != OpType::_ALLREDUCE_SPARSE;
  if (dense) check_written(outputs);
  Announcement mine;
  mine.describe(words);
  mine.fingerprint = c10::get_hash(words);
  return enqueue(kind, inputs.empty() ? outputs : inputs, outputs,
                 [this, timeout = kind.timeout, dense, mine, inputs, outputs, moves = std::move(moves), lengths] {
    Usable usable;
    group_.do_call(timeout, [&] {
      const c10::InferenceMode writes_any;  // also tensors of a caller that is in this mode
      Tensors in = bytes_of(usable.read(inputs, c10d::ReduceOp::SUM));
      Tensors out = dense ? bytes_of(usable.written(outputs)) : outputs;
      agree(mine, lengths, timeout);
      if (moves) moves(in, out);
      usable.write_back();
    });
  });
}

void ProcessBackend::agree(const Announcement& mine, const std::vector<int64_t>& lengths,
                           std::chrono::milliseconds timeout) {
  if (machines_) {
    machines_->agree(mine, timeout);
    if (!lengths.empty()) machines_->agree_on_lengths(mine, lengths, timeout);
    return;
  }
  group_.begin(timeout);
  group_.tell_lengths(lengths);
  group_.arrive(mine);
  group_.meet();
  if (!lengths.empty()) group_.compare_lengths();
}

ProcessBackend::Work ProcessBackend::barrier(const c10d::BarrierOptions& options) {
  return delegate(kind(OpType::BARRIER, "fastreduce:barrier", Collective::allreduce, options), "barrier", {}, {}, {});
}

ProcessBackend::Work ProcessBackend::sum_sparse(const at::Tensor& tensor, const c10d::AllreduceOptions& options) {
  const Kind of = kind(OpType::_ALLREDUCE_SPARSE, "fastreduce:sparse all_reduce", Collective::allreduce, options);
  check_sparse(of.op, tensor);
  const std::string words =
      "sparse all_reduce of " + words_of(tensor) + ", sparse dimensions: " + std::to_string(tensor.sparse_dim());
  c10d::AllreduceOptions own = options;
  own.timeout = of.timeout;
  return delegate(of, words, {}, {tensor},
                  [=, this](Tensors&, Tensors& tensors) { hand_over({rest_->allreduce(tensors, own)}); });
}

ProcessBackend::Work ProcessBackend::gather(Lists& outputs, Tensors& inputs, const c10d::GatherOptions& options) {
  const Kind of = kind(OpType::GATHER, "fastreduce:gather", Collective::allreduce, options);
  check_root(of.root);
  check_one_for_each("gather", "inputs", "outputs", inputs, outputs, getSize(), of.root == getRank());
  const std::string words = "gather of " + words_of(inputs[0]) + ", root " + std::to_string(of.root);
  c10d::GatherOptions own = options;
  own.timeout = of.timeout;
  return delegate(of, words, inputs, flat(outputs), [=, this](Tensors& in, Tensors& out) {
    Lists lists;
    if (!out.empty()) lists.push_back(out);
    hand_over({rest_->gather(lists, in, own)});
  });
}

ProcessBackend::Work ProcessBackend::scatter(Tensors& outputs, Lists& inputs, const c10d::ScatterOptions& options) {
  const Kind of = kind(OpType::SCATTER, "fastreduce:scatter", Collective::allreduce, options);
  check_root(of.root);
  check_one_for_each("scatter", "outputs", "inputs", outputs, inputs, getSize(), of.root == getRank());
  const std::string words = "scatter of " + words_of(outputs[0]) + ", root " + std::to_string(of.root);
  c10d::ScatterOptions own = options;
  own.timeout = of.timeout;
  return delegate(of, words, flat(inputs), outputs, [=, this](Tensors& in, Tensors& out) {
    Lists lists;
    if (!in.empty()) lists.push_back(in);
    hand_over({rest_->scatter(out, lists, own)});
  });
}

ProcessBackend::Work ProcessBackend::exchange(OpType type, const Tensors& inputs, const Tensors& outputs,
                                              const std::vector<int64_t>& sent, const std::vector<int64_t>& taken,
                                              const c10d::AllToAllOptions& options) {
  const Kind of = kind(type, "fastreduce:all_to_all", Collective::allreduce, options);
  const auto elem_bytes = static_cast<int64_t>(inputs[0].element_size());
  c10d::AllToAllOptions own = options;
  own.timeout = of.timeout;
  return delegate(
      of, "all_to_all of " + name_of(inputs[0].scalar_type()), inputs, outputs,
      [=, this, to = times(sent, elem_bytes), from = times(taken, elem_bytes)](Tensors& in, Tensors& out) mutable {
    // Lists are packed into one tensor, since Gloo takes only lists whose tensors have equal lengths.
    at::Tensor packed = in.size() == 1 ? in[0] : at::cat(in);
    at::Tensor got = out.size() == 1 ? out[0] : memory_of_gloo(std::accumulate(from.begin(), from.end(), int64_t{0}));
    Tensors parts;  // made before Gloo is called, since it changes the lengths
    if (out.size() > 1) parts = got.split_with_sizes(from);
    hand_over({rest_->alltoall_base(got, packed, from, to, own)});
    for (size_t rank = 0; rank < parts.size(); ++rank) out[rank].copy_(parts[rank]);
  }, both(sent, taken));
}

ProcessBackend::Work ProcessBackend::alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& options) {
  const auto ranks = static_cast<size_t>(getSize());
  TORCH_CHECK_VALUE(inputs.size() == ranks && outputs.size() == ranks, "all_to_all has ", inputs.size(), " inputs and ",
                    outputs.size(), " outputs; want one of each for each of the ", ranks, " ranks");
  check_tensors(all_of(inputs, outputs));
  return exchange(OpType::ALLTOALL, inputs, outputs, elems_by_rank(inputs), elems_by_rank(outputs), options);
}

ProcessBackend::Work ProcessBackend::alltoall_base(at::Tensor& output, at::Tensor& input,
                                                   std::vector<int64_t>& output_sizes,
                                                   std::vector<int64_t>& input_sizes,
                                                   const c10d::AllToAllOptions& options) {
  check_tensors({input, output});
  const std::vector<int64_t> sent = elems_by_rank("input", input, input_sizes, getSize());
  const std::vector<int64_t> taken = elems_by_rank("output", output, output_sizes, getSize());
  return exchange(OpType::ALLTOALL_BASE, {input}, {output}, sent, taken, options);
}

void ProcessBackend::monitoredBarrier(const c10d::BarrierOptions& options, bool wait_all) {
  rest_->monitoredBarrier(options, wait_all);
}

}  // namespace fastreduce
