// Ordered work on one device. It is said once, and goes to a stream or into a graph.
#pragma once

#include <vector>

#include "cuda/raii.h"

namespace fastreduce {

class CallGraph;

struct KernelLaunch {
  const void* kernel;
  unsigned blocks;
  unsigned threads;
  const void* args;   // the kernel's only parameter
  size_t args_bytes;  // as much of it as is used
};

// A launch's arguments as CUDA takes them where only a part of a parameter is passed.
struct KernelBuffer {
  explicit KernelBuffer(const KernelLaunch& launch)
      : bytes(launch.args_bytes),
        extra{CU_LAUNCH_PARAM_BUFFER_POINTER, const_cast<void*>(launch.args), CU_LAUNCH_PARAM_BUFFER_SIZE, &bytes,
              CU_LAUNCH_PARAM_END} {}
  KernelBuffer(const KernelBuffer&) = delete;
  KernelBuffer& operator=(const KernelBuffer&) = delete;

  size_t bytes;
  void* extra[5];
};

// A point in a line's work: an event of a stream, or the nodes of a graph that come last before it. The alternative, a
// value in memory that one stream writes and others wait for (cuStreamBatchMemOp), takes fewer calls of the host. But
// CUDA wants that order expressed by events as well, or it may serialize the work wrongly; a wait would never end if
// the call failed before its write was queued; and a replayed graph has no such calls to save.
class Mark {
  friend class Line;
  Event event_;  // created when first needed, reused from then on
  std::vector<cudaGraphNode_t> nodes_;
};

// Work that runs in order on one device: a stream, or a chain of nodes in a graph that is being recorded.
class Line {
 public:
  Line(int device, cudaStream_t stream) : device_(device), stream_(stream) {}
  Line(int device, CallGraph& graph) : device_(device), graph_(&graph) {}
  // An empty line of the same graph, or that stream.
  Line beside(int device, cudaStream_t stream) const;

  int device() const { return device_; }
  void load(const void* kernel) const;  // so that launching it waits for nothing
  void launch(const KernelLaunch& launch);
  void copy(void* dst, const void* src, size_t bytes, cudaMemcpyKind kind);
  void record(Mark& mark);
  void wait(const Mark& mark);  // which must have been recorded on a line of the same kind

 private:
  int device_;
  cudaStream_t stream_ = nullptr;
  CallGraph* graph_ = nullptr;
  std::vector<cudaGraphNode_t> last_;  // what the line's next node comes after
};

}  // namespace fastreduce
