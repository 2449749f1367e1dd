// The collectives over several machines: Machines sums, Gloo moves, once all ranks of all machines have agreed on it.
#include <c10/core/InferenceMode.h>

#include "processes/backend.h"
#include "processes/checks.h"
#include "processes/gloo.h"
#include "processes/items.h"

namespace fastreduce {

void ProcessBackend::across(const Kind& kind, const Lists& inputs, const Lists& outputs) {
  const c10::InferenceMode writes_any;  // also tensors of a caller that is in this mode
  Usable usable(outputs.front().front().is_cpu());
  const Announcement mine = announcement(kind, 0, inputs, outputs);
  group_.do_call(kind.timeout, [&] {
    const auto [from, to] = memory_of(kind, inputs, outputs, usable);
    machines_->agree(mine, kind.timeout);
    if (moves_only(kind.collective)) {
      hand_over(moves_across(kind, from, to));
    } else {
      for (size_t i = 0; i < to.size(); ++i) sum_across(kind, mine, from.empty() ? to[i] : from[i], to[i].front());
    }
    return true;
  });
  usable.write_back();
}

// What no rank shall keep of the sum is summed in a copy.
void ProcessBackend::sum_across(const Kind& kind, const Announcement& mine, const Tensors& from, const at::Tensor& to) {
  const c10d::ReduceOp op = folded(kind.op, to.scalar_type());
  if (kind.collective == Collective::allreduce || (kind.collective == Collective::reduce && kind.root == getRank()))
    return machines_->allreduce(to, op, mine, kind.timeout);
  const at::Tensor sum = at::empty({elems_of(from)}, to.options());
  int64_t begin = 0;
  for (const at::Tensor& part : from) {
    sum.narrow(0, begin, part.numel()).copy_(part.view({-1}));
    begin += part.numel();
  }
  machines_->allreduce(sum, op, mine, kind.timeout);
  if (kind.collective == Collective::reduce_scatter)
    to.view({-1}).copy_(sum.narrow(0, getRank() * to.numel(), to.numel()));
}

Works ProcessBackend::moves_across(const Kind& kind, const Lists& from, const Lists& to) {
  Works works;
  for (size_t i = 0; i < to.size(); ++i) {
    Tensors written = bytes_of(to[i]);
    if (elems_of(written) == 0) continue;
    if (kind.collective == Collective::broadcast) {
      c10d::BroadcastOptions options;
      options.rootRank = kind.root;
      options.timeout = kind.timeout;
      works.push_back(rest_->broadcast(written, options));
      continue;
    }
    Tensors read = bytes_of(from[i]);
    Lists by_rank = {written};
    if (written.size() == 1) by_rank = {written.front().tensor_split(getSize())};
    c10d::AllgatherOptions options;
    options.timeout = kind.timeout;
    works.push_back(rest_->allgather(by_rank, read, options));
  }
  return works;
}

void ProcessBackend::hand_over(const Works& works) {
  group_.wait_outside(true, ending_of(works),
                      [this] { return machines_ ? ", between machines: " + machines_->silent() : ""; });
}

}  // namespace fastreduce
