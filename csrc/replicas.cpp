#include "replicas.h"

#include <c10/core/Event.h>
#include <c10/core/GradMode.h>
#include <c10/core/StreamGuard.h>
#include <torch/csrc/autograd/functions/utils.h>

#include <algorithm>
#include <map>

#include "call.h"
#include "nodes.h"

namespace fastreduce {
namespace {

namespace autograd = torch::autograd;
// Whether nobody else may look at the values. Autograd often makes a gradient as a view (that of a linear layer's
// weight is transposed), which keeps its base; the base then counts as one user of the memory.
bool is_alone(const at::Tensor& grad) {
  const size_t users = grad.is_view() && grad._base().use_count() == 1 ? 2 : 1;
  return grad.use_count() == 1 && grad.storage().use_count() == users;
}

// A gradient into which a sum may be written.
at::Tensor own(at::Tensor grad) {
  const bool writable = is_alone(grad) && grad.is_non_overlapping_and_dense();
  return writable ? grad : grad.clone(at::MemoryFormat::Contiguous);
}

class SumOfReplicas final : public autograd::Node {
 public:
  // Of the nodes that are ready, the engine runs those with the highest number first. This is that of the nodes that
  // write .grad, so that a sum does not wait for the rest of the backward pass.
  SumOfReplicas(autograd::edge_list&& params, int64_t ranks, std::string name)
      : Node(/*sequence_nr=*/UINT64_MAX, std::move(params)), ranks_(ranks), name_(std::move(name)) {}

  std::string name() const override { return name_; }

  autograd::variable_list apply(autograd::variable_list&& grads) override {
    const int64_t count = static_cast<int64_t>(grads.size()) / ranks_;
    const c10::MultiStreamGuard streams(joined_streams());
    autograd::variable_list sums(count);
    // The parameters whose gradients come from the same ranks are one call.
    std::map<std::vector<int64_t>, std::vector<int64_t>> params_by_ranks;
    for (int64_t param = 0; param < count; ++param) {
      if (!task_should_compute_output(param)) continue;
      std::vector<int64_t> ranks;
      bool dense = !c10::GradMode::is_enabled();
      for (int64_t rank = 0; rank < ranks_; ++rank) {
        const at::Tensor& grad = grads[rank * count + param];
        if (!grad.defined()) continue;
        ranks.push_back(rank);
        dense = dense && grad.layout() == at::kStrided && grad.has_storage();  // under vmap it has none
      }
      if (dense && ranks.size() > 1)
        params_by_ranks[ranks].push_back(param);
      else
        for (int64_t rank : ranks) add(grads[rank * count + param], sums[param]);
    }
    for (const auto& [ranks, params] : params_by_ranks) {
      Call call{Collective::reduce, {}, {}};
      call.outputs.name = "gradients";
      call.outputs.ranks = static_cast<int64_t>(ranks.size());
      call.outputs.per_rank = static_cast<int64_t>(params.size());
      for (int64_t rank : ranks)
        for (int64_t param : params) call.outputs.flat.push_back(own(std::move(grads[rank * count + param])));
      run(call);
      for (size_t i = 0; i < params.size(); ++i) sums[params[i]] = call.outputs.flat[i];
    }
    for (int64_t param = 0; param < count; ++param)
      if (sums[param].defined()) sums[param] = sums[param].to(device_of(param));
    return sums;
  }

 private:
  // The streams of the replicas' forward passes, on which their gradients arrive. Autograd has made the first one wait
  // for all gradients; here the others wait for the first one.
  std::vector<c10::Stream> joined_streams() const {
    std::vector<c10::Stream> streams;
    for (uint32_t input = 0; input < num_inputs(); ++input) {
      if (input_metadata(input).device().is_cpu()) continue;
      const c10::Stream stream = input_metadata(input).stream();
      if (std::find(streams.begin(), streams.end(), stream) == streams.end()) streams.push_back(stream);
    }
    if (streams.size() > 1) {
      c10::Event ready(streams[0].device_type());
      ready.record(streams[0]);
      for (const c10::Stream& stream : streams) ready.block(stream);
    }
    return streams;
  }

  static void add(const at::Tensor& grad, at::Tensor& sum) {
    if (!sum.defined())
      sum = grad;
    else if (grad.layout() == at::kStrided)  // torch adds a sparse tensor to a dense one, and not the other way round
      sum = grad.to(sum.device()).add(sum);
    else
      sum = sum.add(grad.to(sum.device()));
  }

  // The first replica's, which has the parameters themselves.
  c10::Device device_of(int64_t param) const { return input_metadata(param).device(); }

  int64_t ranks_;
  std::string name_;
};

// Those of forward-mode differentiation do not reach the replicas' aliases.
void refuse_tangents(const Tensors& params) {
  for (const at::Tensor& param : params)
    TORCH_CHECK_NOT_IMPLEMENTED(
        !param._fw_grad(0).defined(),
        "DataParallel: found a parameter with a tangent, which replicas do not follow: "
        "differentiate forward (torch.func.jvp, forward_ad) through the bare module, model.module");
}

}  // namespace

std::vector<Tensors> replicate(const Tensors& params, const std::vector<Tensors>& memories, const std::string& name) {
  refuse_tangents(params);
  std::vector<Tensors> replicas;
  for (const Tensors& memory : memories)
    for (Tensors& replica = replicas.emplace_back(); const at::Tensor& values : memory)
      replica.push_back(values.detach());
  const bool follows = c10::GradMode::is_enabled() &&
                       std::any_of(params.begin(), params.end(), [](const auto& p) { return p.requires_grad(); });
  if (!follows) return replicas;
  const auto node = make_node<SumOfReplicas>(autograd::collect_next_edges(params), memories.size(), name);
  for (const Tensors& replica : replicas)
    for (size_t i = 0; i < params.size(); ++i)  // a frozen parameter keeps its place, but gets no gradient
      autograd::set_history(params[i].requires_grad() ? replica[i] : at::Tensor(), node);
  return replicas;
}

bool sums_over_replicas(const torch::autograd::Node& node) { return dynamic_cast<const SumOfReplicas*>(&node); }

}  // namespace fastreduce
