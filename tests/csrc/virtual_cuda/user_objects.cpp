// What graphs keep alive: an object is destroyed when no graph refers to it and no launch still runs.
#include <algorithm>

#include "runtime.h"

namespace virtual_cuda {
namespace {

thread_local bool destroying = false;

}  // namespace

bool in_a_destructor(const char* name) {
  if (destroying) all_violations().push_back(std::string(name) + " in the destructor of a user object");
  return destroying;
}

void Runtime::retain(std::vector<CUuserObject_st*>& into, const std::vector<CUuserObject_st*>& objects) {
  for (CUuserObject_st* object : objects) ++object->references;
  into.insert(into.end(), objects.begin(), objects.end());
}

// Destructors run in a thread of CUDA's.
void Runtime::release(const std::vector<CUuserObject_st*>& objects) {
  for (CUuserObject_st* object : objects) {
    if (--object->references > 0) continue;
    std::thread([object] {
      destroying = true;
      object->destroy(object->pointer);
    }).join();
    user_objects.erase(object);
  }
}

void Runtime::release_after(Node* node, std::vector<CUuserObject_st*> objects) {
  if (!objects.empty()) released_after.emplace_back(node, std::move(objects));
  release_what_is_done();
}

void Runtime::release_what_is_done() {
  for (auto waiting = released_after.begin(); waiting != released_after.end();) {
    const auto& [node, objects] = *waiting;
    const bool done = node == nullptr || node->done.is_set();
    if (done) release(objects);
    waiting = done ? released_after.erase(waiting) : std::next(waiting);
  }
}

}  // namespace virtual_cuda

using namespace virtual_cuda;

cudaError_t cudaUserObjectCreate(cudaUserObject_t* object, void* pointer, cudaHostFn_t destroy, unsigned references,
                                 unsigned flags) {
  return call("cudaUserObjectCreate", [&](Runtime& rt) {
    require(destroy != nullptr && references > 0 && flags == cudaUserObjectNoDestructorSync, cudaErrorInvalidValue);
    *object = rt.user_objects.add({pointer, destroy, references});
  });
}

cudaError_t cudaUserObjectRelease(cudaUserObject_t object, unsigned count) {
  auto body = [&](Runtime& rt) { rt.release(std::vector(count, &rt.user_objects.at(object))); };
  return call("cudaUserObjectRelease", body, body);
}

cudaError_t cudaGraphRetainUserObject(cudaGraph_t handle, cudaUserObject_t object, unsigned count, unsigned flags) {
  return call("cudaGraphRetainUserObject", [&](Runtime& rt) {
    CUgraph_st& graph = rt.graphs.at(handle);
    require(count > 0 && flags <= cudaGraphUserObjectMove, cudaErrorInvalidValue);
    const std::vector<CUuserObject_st*> references(count, &rt.user_objects.at(object));
    rt.retain(graph.user_objects, references);
    if (flags == cudaGraphUserObjectMove) rt.release(references);
  });
}
