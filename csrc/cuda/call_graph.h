#pragma once

#include <functional>
#include <vector>

#include "cuda/line.h"

namespace fastreduce {

// The CUDA graph of one call, built node by node. It is not captured from streams, because any thread that synchronizes
// a device meanwhile breaks a capture and gets an error itself.
class CallGraph {
 public:
  CallGraph();

  // `work` adds the nodes, through lines of this graph. When it is recorded again, the same nodes get new parameters:
  // it must then be the same work, on other addresses of the same devices. Launches that still run keep the old ones.
  void record(const std::function<void()>& work);
  cudaGraphNode_t launch(const std::vector<cudaGraphNode_t>& after, const KernelLaunch& launch);
  cudaGraphNode_t copy(const std::vector<cudaGraphNode_t>& after, void* dst, const void* src, size_t bytes,
                       cudaMemcpyKind kind);

  void run(cudaStream_t stream) const;
  int64_t bytes() const { return bytes_; }  // of host memory, roughly
  bool uses_host = false;                   // the lanes' memory for what passes through the host

 private:
  template <class Add, class Update>
  cudaGraphNode_t next_node(const Add& add, const Update& update);

  Graph graph_;
  GraphExec exec_;  // empty until the graph is recorded
  std::vector<cudaGraphNode_t> nodes_;
  size_t next_ = 0;
  int64_t bytes_ = 0;
};

}  // namespace fastreduce
