// The collectives as torch names them. Over several machines, rest_ serves all but allreduce.
#include <c10/util/hash.h>

#include "processes/backend.h"
#include "processes/checks.h"
#include "processes/items.h"

namespace fastreduce {

using c10d::OpType;

template <class CallOptions>
ProcessBackend::Kind ProcessBackend::kind(OpType type, const char* title, Collective collective,
                                          const CallOptions& options) const {
  Kind kind{type, title, collective, c10d::ReduceOp::SUM, 0, options.timeout, !options.asyncOp};
  if constexpr (requires { options.reduceOp; }) kind.op = options.reduceOp;
  if constexpr (requires { options.rootRank; }) kind.root = options.rootRank;
  if (kind.timeout == c10d::kUnsetTimeout) kind.timeout = options_->timeout;
  return kind;
}

template <class CallOptions>
ProcessBackend::Work ProcessBackend::delegate(OpType type, const char* title, const CallOptions& options,
                                              Tensors outputs, std::function<Work()> call) {
  if (machines_) return call();  // the ranks of other machines cannot be asked
  const Kind of = kind(type, title, Collective::allreduce, options);
  Announcement mine;
  mine.describe(title + std::strlen("fastreduce:"));
  mine.fingerprint = c10::get_hash(std::string(mine.text.data()));
  return enqueue(of, outputs, outputs, [this, mine, timeout = of.timeout, call = std::move(call)] {
    group_.agree(mine, timeout);
    if (const Work work = call()) work->wait();
  });
}

// ---- by programs

ProcessBackend::Work ProcessBackend::allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) {
  if (tensors.size() == 1 && tensors[0].layout() == at::kSparse)  // gradients of embeddings
    return delegate(OpType::_ALLREDUCE_SPARSE, "fastreduce:sparse all_reduce", options, tensors,
                    [=, this]() mutable { return rest_->allreduce(tensors, options); });
  const Kind of = kind(OpType::ALLREDUCE, "fastreduce:all_reduce", Collective::allreduce, options);
  return machines_ ? across(of, tensors) : submit(of, {}, each_alone(tensors));
}

ProcessBackend::Work ProcessBackend::allreduce_coalesced(Tensors& tensors,
                                                         const c10d::AllreduceCoalescedOptions& options) {
  const Kind of = kind(OpType::ALLREDUCE_COALESCED, "fastreduce:all_reduce", Collective::allreduce, options);
  return machines_ ? across(of, tensors) : submit(of, {}, each_alone(tensors));
}

ProcessBackend::Work ProcessBackend::reduce(Tensors& tensors, const c10d::ReduceOptions& options) {
  if (machines_) return rest_->reduce(tensors, options);
  return submit(kind(OpType::REDUCE, "fastreduce:reduce", Collective::reduce, options), {}, each_alone(tensors));
}

ProcessBackend::Work ProcessBackend::broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) {
  if (machines_) return rest_->broadcast(tensors, options);
  return submit(kind(OpType::BROADCAST, "fastreduce:broadcast", Collective::broadcast, options), {},
                each_alone(tensors));
}

ProcessBackend::Work ProcessBackend::allgather(Lists& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) {
  if (machines_) return rest_->allgather(outputs, inputs, options);
  return submit(kind(OpType::ALLGATHER, "fastreduce:all_gather", Collective::all_gather, options), each_alone(inputs),
                outputs);
}

ProcessBackend::Work ProcessBackend::_allgather_base(at::Tensor& output, at::Tensor& input,
                                                     const c10d::AllgatherOptions& options) {
  if (machines_) return rest_->_allgather_base(output, input, options);
  return submit(kind(OpType::_ALLGATHER_BASE, "fastreduce:all_gather", Collective::all_gather, options), {{input}},
                {{output}});
}

// One list for each rank, of one tensor for each input.
ProcessBackend::Work ProcessBackend::allgather_coalesced(Lists& outputs, Tensors& inputs,
                                                         const c10d::AllgatherOptions& options) {
  if (machines_) return rest_->allgather_coalesced(outputs, inputs, options);
  Lists by_input(inputs.size());
  for (const Tensors& of_rank : outputs) {
    TORCH_CHECK_VALUE(of_rank.size() == inputs.size(), "a list of outputs has ", of_rank.size(), " tensors; want ",
                      inputs.size(), ", one for each input");
    for (size_t i = 0; i < inputs.size(); ++i) by_input[i].push_back(of_rank[i]);
  }
  return submit(kind(OpType::ALLGATHER_COALESCED, "fastreduce:all_gather", Collective::all_gather, options),
                each_alone(inputs), by_input);
}

ProcessBackend::Work ProcessBackend::allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                                     const c10d::AllgatherOptions& options) {
  if (machines_) return rest_->allgather_into_tensor_coalesced(outputs, inputs, options);
  return submit(kind(OpType::ALLGATHER_COALESCED, "fastreduce:all_gather", Collective::all_gather, options),
                each_alone(inputs), each_alone(outputs));
}

ProcessBackend::Work ProcessBackend::reduce_scatter(Tensors& outputs, Lists& inputs,
                                                    const c10d::ReduceScatterOptions& options) {
  if (machines_) return rest_->reduce_scatter(outputs, inputs, options);
  return submit(kind(OpType::REDUCE_SCATTER, "fastreduce:reduce_scatter", Collective::reduce_scatter, options), inputs,
                each_alone(outputs));
}

ProcessBackend::Work ProcessBackend::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                                          const c10d::ReduceScatterOptions& options) {
  if (machines_) return rest_->_reduce_scatter_base(output, input, options);
  return submit(kind(OpType::_REDUCE_SCATTER_BASE, "fastreduce:reduce_scatter", Collective::reduce_scatter, options),
                {{input}}, {{output}});
}

ProcessBackend::Work ProcessBackend::reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                                     const c10d::ReduceScatterOptions& options) {
  if (machines_) return rest_->reduce_scatter_tensor_coalesced(outputs, inputs, options);
  return submit(kind(OpType::COALESCED, "fastreduce:reduce_scatter", Collective::reduce_scatter, options),
                each_alone(inputs), each_alone(outputs));
}

// ---- without programs

ProcessBackend::Work ProcessBackend::barrier(const c10d::BarrierOptions& options) {
  return delegate(OpType::BARRIER, "fastreduce:barrier", options, {},
                  [=, this] { return machines_ ? rest_->barrier(options) : Work(); });
}

ProcessBackend::Work ProcessBackend::gather(Lists& outputs, Tensors& inputs, const c10d::GatherOptions& options) {
  return delegate(OpType::GATHER, "fastreduce:gather", options, flat(outputs),
                  [=, this]() mutable { return rest_->gather(outputs, inputs, options); });
}

ProcessBackend::Work ProcessBackend::scatter(Tensors& outputs, Lists& inputs, const c10d::ScatterOptions& options) {
  return delegate(OpType::SCATTER, "fastreduce:scatter", options, outputs,
                  [=, this]() mutable { return rest_->scatter(outputs, inputs, options); });
}

ProcessBackend::Work ProcessBackend::alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& options) {
  return delegate(OpType::ALLTOALL, "fastreduce:all_to_all", options, outputs,
                  [=, this]() mutable { return rest_->alltoall(outputs, inputs, options); });
}

ProcessBackend::Work ProcessBackend::alltoall_base(at::Tensor& output, at::Tensor& input,
                                                   std::vector<int64_t>& output_sizes,
                                                   std::vector<int64_t>& input_sizes,
                                                   const c10d::AllToAllOptions& options) {
  return delegate(OpType::ALLTOALL_BASE, "fastreduce:all_to_all", options, {output}, [=, this]() mutable {
    return rest_->alltoall_base(output, input, output_sizes, input_sizes, options);
  });
}

ProcessBackend::Work ProcessBackend::send(Tensors& tensors, int to, int tag) {
  check_on_cpu("send", tensors);
  return rest_->send(tensors, to, tag);
}

ProcessBackend::Work ProcessBackend::recv(Tensors& tensors, int from, int tag) {
  check_on_cpu("recv", tensors);
  return rest_->recv(tensors, from, tag);
}

ProcessBackend::Work ProcessBackend::recvAnysource(Tensors& tensors, int tag) {
  check_on_cpu("recv", tensors);
  return rest_->recvAnysource(tensors, tag);
}

void ProcessBackend::monitoredBarrier(const c10d::BarrierOptions& options, bool wait_all) {
  rest_->monitoredBarrier(options, wait_all);
}

}  // namespace fastreduce
