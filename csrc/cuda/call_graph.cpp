#include "cuda/call_graph.h"

namespace fastreduce {
namespace {

// Of host memory for each node beside its kernel's arguments. Predicted.
constexpr int64_t kNodeBytes = 1024;

Graph make_graph() {
  cudaGraph_t graph;
  cuda_check(cudaGraphCreate(&graph, 0), "cudaGraphCreate");
  return Graph(graph);
}

}  // namespace

CallGraph::CallGraph() : graph_(make_graph()) {}

void CallGraph::record(const std::function<void()>& work) {
  next_ = 0;
  work();
  if (next_ != nodes_.size()) throw std::runtime_error("fastreduce: a repeated call has fewer launches than before");
  if (exec_.get()) return;
  cudaGraphExec_t exec;
  cuda_check(cudaGraphInstantiate(&exec, graph_.get(), 0), "cudaGraphInstantiate");
  exec_ = GraphExec(exec);
}

template <class Add, class Update>  // add(new node) in the first recording, update(node) in the others
cudaGraphNode_t CallGraph::next_node(const Add& add, const Update& update) {
  if (!exec_.get()) {
    add(&nodes_.emplace_back());
  } else {
    if (next_ == nodes_.size()) throw std::runtime_error("fastreduce: a repeated call has more launches than before");
    update(nodes_[next_]);
  }
  return nodes_[next_++];
}

cudaGraphNode_t CallGraph::launch(const std::vector<cudaGraphNode_t>& after, const KernelLaunch& launch) {
  KernelBuffer buffer(launch);
  cudaKernelNodeParams node{};
  node.func = const_cast<void*>(launch.kernel);
  node.gridDim = dim3(launch.blocks);
  node.blockDim = dim3(launch.threads);
  node.extra = buffer.extra;
  return next_node([&](cudaGraphNode_t* added) {
    cuda_check(cudaGraphAddKernelNode(added, graph_.get(), after.data(), after.size(), &node),
               "cudaGraphAddKernelNode");
    bytes_ += 2 * (kNodeBytes + static_cast<int64_t>(launch.args_bytes));  // the executable graph has a copy
  }, [&](cudaGraphNode_t known) {
    cuda_check(cudaGraphExecKernelNodeSetParams(exec_.get(), known, &node), "cudaGraphExecKernelNodeSetParams");
  });
}

cudaGraphNode_t CallGraph::copy(const std::vector<cudaGraphNode_t>& after, void* dst, const void* src, size_t bytes,
                                cudaMemcpyKind kind) {
  return next_node([&](cudaGraphNode_t* added) {
    cuda_check(cudaGraphAddMemcpyNode1D(added, graph_.get(), after.data(), after.size(), dst, src, bytes, kind),
               "cudaGraphAddMemcpyNode1D");
    bytes_ += 2 * kNodeBytes;
  }, [&](cudaGraphNode_t known) {
    cuda_check(cudaGraphExecMemcpyNodeSetParams1D(exec_.get(), known, dst, src, bytes, kind),
               "cudaGraphExecMemcpyNodeSetParams1D");
  });
}

void CallGraph::run(cudaStream_t stream) const { cuda_check(cudaGraphLaunch(exec_.get(), stream), "cudaGraphLaunch"); }

}  // namespace fastreduce
