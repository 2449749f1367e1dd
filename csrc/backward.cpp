#include "backward.h"

#include <ATen/SequenceNumber.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>

#include <iterator>
#include <set>
#include <string_view>
#include <typeinfo>
#include <unordered_set>

#include "nodes.h"
#include "replicas.h"

namespace fastreduce {
namespace {

namespace autograd = torch::autograd;

// Other nodes may do anything in their backward pass: call Python, write to what others read, or go backward
// themselves. The type of Python's is not exported, so their names tell.
bool is_operation_of_torch(const autograd::Node& node) {
  return std::string_view(typeid(node).name()).starts_with("N5torch8autograd9generated");
}

bool has_hooks(autograd::Node& node) { return !node.tensor_pre_hooks().empty() || !node.retains_grad_hooks().empty(); }

bool is_apart(autograd::Node& node) {
  return is_operation_of_torch(node) && !has_hooks(node) && node.pre_hooks().empty() && node.post_hooks().empty();
}

// Of one shard: those that lead from `outputs` to `parameters`, and to whatever else.
std::unordered_set<autograd::Node*> nodes_between(const autograd::edge_list& outputs,
                                                  const autograd::edge_list& parameters) {
  std::set<std::pair<autograd::Node*, uint32_t>> ends;
  for (const autograd::Edge& edge : parameters) ends.emplace(edge.function.get(), edge.input_nr);
  std::unordered_set<autograd::Node*> found;
  std::vector<autograd::Node*> left;
  const auto follow = [&](const autograd::edge_list& edges) {
    for (const autograd::Edge& edge : edges)
      if (edge.is_valid() && !ends.count({edge.function.get(), edge.input_nr}) &&
          found.insert(edge.function.get()).second)
        left.push_back(edge.function.get());
  };
  follow(outputs);
  while (!left.empty()) {
    autograd::Node* const node = left.back();
    left.pop_back();
    follow(node->next_edges());
  }
  return found;
}

std::vector<autograd::edge_list> edges_of(const std::vector<Tensors>& shards) {
  std::vector<autograd::edge_list> edges;
  for (const Tensors& shard : shards)
    for (autograd::edge_list& own = edges.emplace_back(); const at::Tensor& tensor : shard)
      own.push_back(autograd::impl::gradient_edge(tensor));
  return edges;
}

autograd::edge_list flat(const std::vector<autograd::edge_list>& shards) {
  autograd::edge_list all;
  for (const autograd::edge_list& shard : shards) all.insert(all.end(), shard.begin(), shard.end());
  return all;
}

class BackwardOfShards final : public autograd::Node {
 public:
  BackwardOfShards(ShardsBackward::Ends&& ends, RunShards&& run_shards)
      : Node(flat(ends.parameters)), ends_(std::move(ends)), run_shards_(std::move(run_shards)) {}

  std::string name() const override { return "BackwardOfShards"; }

  autograd::variable_list apply(autograd::variable_list&& grads) override {
    const auto pass = std::make_shared<ShardsBackward>(ends_, std::move(grads));
    run_shards_(pass);
    return pass->end();
  }

 private:
  const ShardsBackward::Ends ends_;
  const RunShards run_shards_;
};

bool are_all_apart(const ShardsBackward::Ends& ends) {
  std::unordered_set<autograd::Node*> all;
  for (size_t shard = 0; shard < ends.outputs.size(); ++shard) {
    for (const autograd::Edge& edge : ends.parameters.at(shard))
      if (!sums_over_replicas(*edge.function) || has_hooks(*edge.function)) return false;
    for (autograd::Node* node : nodes_between(ends.outputs[shard], ends.parameters[shard]))
      if (!is_apart(*node) || !all.insert(node).second) return false;
  }
  return true;
}

// The engine runs nodes with higher numbers first, and threads count for themselves.
void number_after(const ShardsBackward::Ends& ends) {
  for (size_t shard = 0; shard < ends.outputs.size(); ++shard)
    for (const autograd::Node* node : nodes_between(ends.outputs[shard], ends.parameters[shard]))
      while (at::sequence_number::peek() <= node->sequence_nr()) at::sequence_number::get_and_increment();
}

// Whether the rest of autograd's pass goes through the shards' own operations, too: there may be another way to them
// than from the outputs, from what was computed with gradients of gradients, or from a tensor that forward has put
// elsewhere.
bool is_needed_again(const ShardsBackward::Ends& ends) {
  const auto* nodes = autograd::get_current_graph_task_nodes_in_graph();
  if (!nodes) return false;  // called by hand, and not by autograd
  for (size_t shard = 0; shard < ends.outputs.size(); ++shard)
    for (autograd::Node* node : nodes_between(ends.outputs[shard], ends.parameters[shard]))
      if (nodes->count(node)) return true;
  return false;
}

}  // namespace

ShardsBackward::ShardsBackward(const Ends& ends, Tensors&& grads)
    : ends_(ends),
      keep_graph_(autograd::get_current_graph_task_keep_graph() || is_needed_again(ends)),
      create_graph_(c10::GradMode::is_enabled()),
      of_parameters_(ends.outputs.size()) {
  auto next = std::make_move_iterator(grads.begin());
  for (const autograd::edge_list& outputs : ends_.outputs) {
    of_outputs_.emplace_back(next, next + outputs.size());
    next += outputs.size();
  }
}

bool ShardsBackward::are_apart() const { return are_all_apart(ends_); }

void ShardsBackward::run(size_t shard) {
  autograd::edge_list from;
  Tensors grads;
  for (size_t output = 0; output < ends_.outputs.at(shard).size(); ++output) {
    at::Tensor& grad = of_outputs_[shard][output];
    if (!grad.defined()) continue;
    from.push_back(ends_.outputs[shard][output]);
    grads.push_back(std::move(grad));
  }
  const autograd::edge_list& to = ends_.parameters[shard];
  of_parameters_[shard].resize(to.size());
  if (from.empty() || to.empty()) return;
  of_parameters_[shard] = autograd::Engine::get_default_engine().execute(from, grads, keep_graph_, create_graph_,
                                                                         /*accumulate_grad=*/false, to);
}

Tensors ShardsBackward::end() {
  Tensors all;
  for (Tensors& shard : of_parameters_)
    all.insert(all.end(), std::make_move_iterator(shard.begin()), std::make_move_iterator(shard.end()));
  return all;
}

std::optional<std::vector<Tensors>> going_backward_by(RunShards run_shards, const std::vector<Tensors>& outputs,
                                                      const std::vector<Tensors>& parameters) {
  ShardsBackward::Ends ends{edges_of(outputs), edges_of(parameters)};
  if (!are_all_apart(ends)) return std::nullopt;
  number_after(ends);
  const NodePointer node = make_node<BackwardOfShards>(std::move(ends), std::move(run_shards));
  std::vector<Tensors> joined;
  for (const Tensors& shard : outputs)
    for (Tensors& own = joined.emplace_back(); const at::Tensor& output : shard)
      autograd::set_history(own.emplace_back(output.detach()), node);
  return joined;
}

}  // namespace fastreduce
