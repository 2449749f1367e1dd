// Collectives over several machines. First all ranks of all machines agree on the call; then Machines does the sums,
// and Gloo moves all other data.
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
    if (!moves_only(kind.collective)) {
      sum_across(kind, mine, from.empty() ? to : from, to);
    } else if (elems_of(bytes_of(flat(to))) <= Machines::kSmallBytes) {
      move_in_a_sum(kind, mine, from, to);
    } else {
      machines_->agree(mine, kind.timeout);
      hand_over(moves_across(kind, from, to));
    }
  });
  usable.write_back();
}

// Where a rank's tensors must not be left with the sums, copies of them are summed.
void ProcessBackend::sum_across(const Kind& kind, const Announcement& mine, const Lists& from, const Lists& to) {
  const bool scatters = kind.collective == Collective::reduce_scatter;
  Tensors sums;
  for (const Tensors& parts : from) {
    if (!scatters && !keeps(kind)) {
      sums.push_back(parts.front());
      continue;
    }
    Tensors flat_parts;
    for (const at::Tensor& part : parts) flat_parts.push_back(part.view({-1}));
    sums.push_back(at::cat(flat_parts));
  }
  machines_->allreduce(sums, folded(kind.op, sums.front().scalar_type()), mine, kind.timeout);
  for (size_t i = 0; scatters && i < to.size(); ++i) {
    const at::Tensor& part = to[i].front();
    part.view({-1}).copy_(sums[i].narrow(0, getRank() * part.numel(), part.numel()));
  }
}

// A small sum takes one step of the network. So small data is moved as a sum, to which the rank that has the bytes adds
// them and all others add zeros.
void ProcessBackend::move_in_a_sum(const Kind& kind, const Announcement& mine, const Lists& from, const Lists& to) {
  const bool gathers = kind.collective == Collective::all_gather;
  Tensors sums;
  for (size_t i = 0; i < to.size(); ++i) {
    const at::Tensor& bytes = sums.emplace_back(at::zeros({elems_of(bytes_of(to[i]))}, at::kByte));
    if (!gathers && kind.root != getRank()) continue;
    const at::Tensor own = bytes_of(gathers ? from[i] : to[i]).front();
    bytes.narrow(0, gathers ? getRank() * own.numel() : 0, own.numel()).copy_(own);
  }
  machines_->allreduce(sums, c10d::ReduceOp::SUM, mine, kind.timeout);
  for (size_t i = 0; i < to.size(); ++i) {
    int64_t begin = 0;
    for (const at::Tensor& part : bytes_of(to[i])) {
      part.copy_(sums[i].narrow(0, begin, part.numel()));
      begin += part.numel();
    }
  }
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
