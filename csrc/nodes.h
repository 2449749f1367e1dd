// Nodes of autograd's graph.
#pragma once

#include <torch/csrc/autograd/function.h>

#include <memory>
#include <type_traits>
#include <utility>

namespace fastreduce {

using NodePointer = decltype(torch::autograd::Edge::function);  // std::shared_ptr before torch 2.12

template <class Made, class... Args>
NodePointer make_node(Args&&... args) {
  if constexpr (std::is_same_v<NodePointer, std::shared_ptr<torch::autograd::Node>>)
    return std::make_shared<Made>(std::forward<Args>(args)...);
  else
    return c10::make_intrusive<Made>(std::forward<Args>(args)...);
}

}  // namespace fastreduce
