#include "cuda/lane_sets.h"

#include <algorithm>

namespace fastreduce {
namespace {

// CUDA calls this in a thread of its own, in which CUDA must not be called. Release: what reads the lanes as unused
// comes after the graph's last launch.
void set_unused(void* in_use) { static_cast<std::atomic<bool>*>(in_use)->store(false, std::memory_order_release); }

// Until the graph and all that is instantiated from it are gone, and their launches are done.
void use_while_alive(cudaGraph_t graph, std::atomic<bool>& in_use) {
  cudaUserObject_t object;
  cuda_check(cudaUserObjectCreate(&object, &in_use, set_unused, 1, cudaUserObjectNoDestructorSync),
             "cudaUserObjectCreate");
  in_use.store(true, std::memory_order_relaxed);
  const cudaError_t status = cudaGraphRetainUserObject(graph, object, 1, cudaGraphUserObjectMove);
  if (status != cudaSuccess) cudaUserObjectRelease(object, 1);
  cuda_check(status, "cudaGraphRetainUserObject");
}

}  // namespace

LaneSets::Set& LaneSets::of(const std::optional<Capture>& capture) {
  if (!capture) return outside_captures_;
  for (CapturedSet& set : captured_)
    if (set.in_use.load(std::memory_order_acquire) && set.capture_id == capture->id) return set.lanes;
  CapturedSet& set = unused();
  use_while_alive(capture->graph, set.in_use);
  set.capture_id = capture->id;
  return set.lanes;
}

LaneSets::CapturedSet& LaneSets::unused() {
  for (CapturedSet& set : captured_)
    if (!set.in_use.load(std::memory_order_acquire)) return set;
  return captured_.emplace_back();
}

}  // namespace fastreduce
