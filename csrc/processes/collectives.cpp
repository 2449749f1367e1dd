// The collectives that have programs, by torch's names.
#include "processes/backend.h"
#include "processes/items.h"

namespace fastreduce {

using c10d::OpType;

ProcessBackend::Work ProcessBackend::allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) {
  if (tensors.size() == 1 && tensors[0].layout() == at::kSparse)  // gradients of embeddings
    return sum_sparse(tensors[0], options);
  const Kind of = kind(OpType::ALLREDUCE, "fastreduce:all_reduce", Collective::allreduce, options);
  return submit(of, {}, each_alone(tensors));
}

ProcessBackend::Work ProcessBackend::allreduce_coalesced(Tensors& tensors,
                                                         const c10d::AllreduceCoalescedOptions& options) {
  const Kind of = kind(OpType::ALLREDUCE_COALESCED, "fastreduce:all_reduce", Collective::allreduce, options);
  return submit(of, {}, each_alone(tensors));
}

ProcessBackend::Work ProcessBackend::reduce(Tensors& tensors, const c10d::ReduceOptions& options) {
  return submit(kind(OpType::REDUCE, "fastreduce:reduce", Collective::reduce, options), {}, each_alone(tensors));
}

ProcessBackend::Work ProcessBackend::broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) {
  return submit(kind(OpType::BROADCAST, "fastreduce:broadcast", Collective::broadcast, options), {},
                each_alone(tensors));
}

ProcessBackend::Work ProcessBackend::allgather(Lists& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) {
  return submit(kind(OpType::ALLGATHER, "fastreduce:all_gather", Collective::all_gather, options), each_alone(inputs),
                outputs);
}

ProcessBackend::Work ProcessBackend::_allgather_base(at::Tensor& output, at::Tensor& input,
                                                     const c10d::AllgatherOptions& options) {
  return submit(kind(OpType::_ALLGATHER_BASE, "fastreduce:all_gather", Collective::all_gather, options), {{input}},
                {{output}});
}

// One list for each rank, of one tensor for each input.
ProcessBackend::Work ProcessBackend::allgather_coalesced(Lists& outputs, Tensors& inputs,
                                                         const c10d::AllgatherOptions& options) {
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
  return submit(kind(OpType::ALLGATHER_COALESCED, "fastreduce:all_gather", Collective::all_gather, options),
                each_alone(inputs), each_alone(outputs));
}

ProcessBackend::Work ProcessBackend::reduce_scatter(Tensors& outputs, Lists& inputs,
                                                    const c10d::ReduceScatterOptions& options) {
  return submit(kind(OpType::REDUCE_SCATTER, "fastreduce:reduce_scatter", Collective::reduce_scatter, options), inputs,
                each_alone(outputs));
}

ProcessBackend::Work ProcessBackend::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                                          const c10d::ReduceScatterOptions& options) {
  return submit(kind(OpType::_REDUCE_SCATTER_BASE, "fastreduce:reduce_scatter", Collective::reduce_scatter, options),
                {{input}}, {{output}});
}

ProcessBackend::Work ProcessBackend::reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                                     const c10d::ReduceScatterOptions& options) {
  return submit(kind(OpType::COALESCED, "fastreduce:reduce_scatter", Collective::reduce_scatter, options),
                each_alone(inputs), each_alone(outputs));
}

}  // namespace fastreduce
