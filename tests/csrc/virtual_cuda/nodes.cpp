// Graphs that are built node by node, and executable ones that get new parameters.
#include <set>

#include "work.h"

using namespace virtual_cuda;

namespace virtual_cuda {
namespace {

cudaGraphNode_t add_node(Runtime& rt, CUgraph_st& graph, const cudaGraphNode_t* after, size_t after_count,
                         SharedWork work) {
  std::set<int> items;
  for (size_t i = 0; i < after_count; ++i) {
    const CUgraphNode_st& earlier = rt.graph_nodes.at(after[i]);
    require(earlier.graph == &graph, cudaErrorInvalidValue);
    require(items.insert(earlier.item).second, cudaErrorInvalidValue);  // named twice
  }
  graph.nodes.push_back(rt.graph_nodes.add({&graph, static_cast<int>(graph.items.size())}));
  graph.items.push_back({std::move(work), {items.begin(), items.end()}});
  return graph.nodes.back();
}

// Where an executable graph keeps what the node does. The node's graph must still be the one that it was made from.
SharedWork& work_of(Runtime& rt, CUgraphExec_st& exec, cudaGraphNode_t handle) {
  const CUgraphNode_st& node = rt.graph_nodes.at(handle);
  require(node.graph == exec.origin && node.item < static_cast<int>(exec.items.size()), cudaErrorInvalidValue);
  return exec.items[node.item].work;
}

// A kernel node belongs to the device that is current when it is made.
SharedWork node_work(Runtime& rt, const cudaKernelNodeParams& params) {
  const cudaLaunchConfig_t config{params.gridDim, params.blockDim, params.sharedMemBytes, nullptr, nullptr, 0};
  Launch launch = described(params.func, params.kernelParams, params.extra);
  check_launch(rt, config, launch);
  return kernel_work(rt, config, std::move(launch), host_thread().device);
}

SharedWork node_work(Runtime& rt, void* dst, const void* src, size_t bytes, cudaMemcpyKind kind) {
  require(dst != nullptr && src != nullptr, cudaErrorInvalidValue);
  check_kind(rt, dst, src, kind);
  return copy_work(rt, dst, src, bytes, host_thread().device);
}

bool same_places(const Runtime& rt, const Work& work, const Work& other) {
  for (size_t i = 0; i < work.accesses.size(); ++i)
    if (rt.memory.device_of(work.accesses[i].begin) != rt.memory.device_of(other.accesses[i].begin)) return false;
  return true;
}

}  // namespace
}  // namespace virtual_cuda

cudaError_t cudaGraphCreate(cudaGraph_t* graph, unsigned flags) {
  return call("cudaGraphCreate", [&](Runtime& rt) {
    require(flags == 0, cudaErrorInvalidValue);
    *graph = rt.graphs.add({});
  });
}

cudaError_t cudaGraphAddKernelNode(cudaGraphNode_t* node, cudaGraph_t graph, const cudaGraphNode_t* after,
                                   size_t after_count, const cudaKernelNodeParams* params) {
  return call("cudaGraphAddKernelNode", [&](Runtime& rt) {
    *node = add_node(rt, rt.graphs.at(graph), after, after_count, node_work(rt, *params));
  });
}

cudaError_t cudaGraphAddMemcpyNode1D(cudaGraphNode_t* node, cudaGraph_t graph, const cudaGraphNode_t* after,
                                     size_t after_count, void* dst, const void* src, size_t bytes,
                                     cudaMemcpyKind kind) {
  return call("cudaGraphAddMemcpyNode1D", [&](Runtime& rt) {
    *node = add_node(rt, rt.graphs.at(graph), after, after_count, node_work(rt, dst, src, bytes, kind));
  });
}

cudaError_t cudaGraphExecKernelNodeSetParams(cudaGraphExec_t exec, cudaGraphNode_t node,
                                             const cudaKernelNodeParams* params) {
  return call("cudaGraphExecKernelNodeSetParams", [&](Runtime& rt) {
    SharedWork& work = work_of(rt, rt.execs.at(exec), node);
    require(work->kernel && work->device == host_thread().device, cudaErrorInvalidValue);
    work = node_work(rt, *params);
  });
}

cudaError_t cudaGraphExecMemcpyNodeSetParams1D(cudaGraphExec_t exec, cudaGraphNode_t node, void* dst, const void* src,
                                               size_t bytes, cudaMemcpyKind kind) {
  return call("cudaGraphExecMemcpyNodeSetParams1D", [&](Runtime& rt) {
    SharedWork& work = work_of(rt, rt.execs.at(exec), node);
    require(!work->kernel && bytes > 0, cudaErrorInvalidValue);
    SharedWork changed = node_work(rt, dst, src, bytes, kind);
    require(same_places(rt, *work, *changed), cudaErrorInvalidValue);
    work = std::move(changed);
  });
}
