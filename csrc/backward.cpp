#include "backward.h"

#include <ATen/ops/ones_like.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/variable.h>

#include <optional>
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

// The inputs of sums to which `loss` leads; nothing if it leads to more than operations of its own and sums. `known`
// are the nodes of the shards before.
std::optional<autograd::edge_list> ends_of(const at::Tensor& loss, std::unordered_set<autograd::Node*>& known) {
  autograd::edge_list ends;
  std::vector<autograd::Node*> left{loss.grad_fn().get()};
  std::unordered_set<autograd::Node*> own{left[0]};
  std::set<std::pair<autograd::Node*, uint32_t>> found;
  while (!left.empty()) {
    autograd::Node* const node = left.back();
    left.pop_back();
    if (!node || known.count(node) || !is_apart(*node)) return std::nullopt;
    for (const autograd::Edge& next : node->next_edges()) {
      if (!next.is_valid()) continue;
      autograd::Node* const below = next.function.get();
      if (!sums_over_replicas(*below)) {
        if (own.insert(below).second) left.push_back(below);
      } else if (has_hooks(*below)) {
        return std::nullopt;
      } else if (found.emplace(below, next.input_nr).second) {
        ends.push_back(next);
      }
    }
  }
  known.merge(own);
  return ends.empty() ? std::nullopt : std::optional(std::move(ends));
}

// The root of the second step. It gives its gradients away: a sum is written into one that nobody else has.
class Gradients final : public autograd::Node {
 public:
  Gradients(autograd::edge_list&& ends, Tensors&& grads) : Node(std::move(ends)), grads_(std::move(grads)) {}
  autograd::variable_list apply(autograd::variable_list&&) override { return std::move(grads_); }

 private:
  Tensors grads_;
};

Tensors execute(const autograd::Edge& root, const at::Tensor& grad, const autograd::edge_list& ends) {
  return autograd::Engine::get_default_engine().execute({root}, {grad}, /*keep_graph=*/false, /*create_graph=*/false,
                                                        /*accumulate_grad=*/ends.empty(), ends);
}

}  // namespace

BackwardOfShards::BackwardOfShards(Tensors losses) : losses_(std::move(losses)), grads_(losses_.size()) {
  std::unordered_set<autograd::Node*> known;
  for (const at::Tensor& loss : losses_) {
    std::optional<autograd::edge_list> ends = ends_of(loss, known);
    if (!ends) return;
    ends_.push_back(*std::move(ends));
  }
}

void BackwardOfShards::run(size_t shard) {
  const at::Tensor& loss = losses_.at(shard);
  grads_[shard] = execute(autograd::impl::gradient_edge(loss), at::ones_like(loss), ends_[shard]);
}

void BackwardOfShards::sum() {
  autograd::edge_list ends;
  Tensors grads;
  for (size_t shard = 0; shard < ends_.size(); ++shard) {
    ends.insert(ends.end(), ends_[shard].begin(), ends_[shard].end());
    grads.insert(grads.end(), std::make_move_iterator(grads_[shard].begin()),
                 std::make_move_iterator(grads_[shard].end()));
  }
  ends_.clear();
  grads_.clear();
  const NodePointer root = make_node<Gradients>(std::move(ends), std::move(grads));
  root->add_input_metadata(losses_[0]);
  execute({root, 0}, at::ones_like(losses_[0]), {});
}

}  // namespace fastreduce
