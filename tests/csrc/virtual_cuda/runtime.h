// The inside of the virtual runtime. All state is touched by host threads under one mutex; a
// stream's worker sees only its own nodes, so that ThreadSanitizer sees no order that CUDA does
// not give: from the host to what it queues, along a stream, along events, and back by waiting.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

#include "checker.h"
#include "cuda_runtime.h"
#include "memory.h"
#include "queue.h"
#include "snapshot.h"

namespace virtual_cuda {

// Thrown inside; the API function returns the code.
struct Error {
  cudaError_t code;
};

struct Capture;

}  // namespace virtual_cuda

struct CUstream_st {
  virtual_cuda::Queue* queue;
  int device;
  unsigned flags;
  bool legacy;
  std::shared_ptr<virtual_cuda::Capture> capture;
  std::vector<int> frontier;  // nodes of the capture that the next one comes after
};

struct CUevent_st {
  int device;
  unsigned flags;
  bool recorded = false;
  virtual_cuda::Node* node = nullptr;  // null, if recorded: it is done, and forgotten
  int64_t time_ns = 0;
  virtual_cuda::Clock clock;
  std::shared_ptr<virtual_cuda::Capture> capture;
  std::vector<int> frontier;
};

struct CUgraph_st {
  struct Item {
    std::shared_ptr<const virtual_cuda::Work> work;
    std::vector<int> after;
  };
  std::vector<Item> items;
  std::vector<CUgraphNode_st*> nodes;          // of the items that were not captured
  std::vector<CUuserObject_st*> user_objects;  // one for each reference
};

struct CUuserObject_st {
  void* pointer;
  cudaHostFn_t destroy;
  int64_t references;
};

struct CUgraphNode_st {
  const CUgraph_st* graph;
  int item;
};

struct CUgraphExec_st {
  const CUgraph_st* origin;  // instantiated from it; null when it is destroyed
  std::vector<CUgraph_st::Item> items;
  std::vector<CUuserObject_st*> user_objects;
  std::vector<int> lane_of_item;
  std::vector<virtual_cuda::Queue*> lanes;
  virtual_cuda::Node* last = nullptr;  // launches of one graph follow each other
  virtual_cuda::Clock clock;
};

namespace virtual_cuda {

struct Capture {
  unsigned long long id;
  cudaStreamCaptureMode mode;
  std::thread::id thread;
  CUstream_st* origin;
  bool invalid = false;
  bool ended = false;
  CUgraph_st* graph;
  std::vector<CUstream_st*> streams;
};

struct HostThread {
  int device = 0;
  cudaError_t last_error = cudaSuccess;
  cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;
  bool has_context = false;  // without one the driver's functions fail
  int64_t generation = 0;    // of the runtime it belongs to
};
HostThread& host_thread();

struct Failure {
  std::string name;  // empty: any call
  int64_t in;
  cudaError_t error;
};

// Owns the objects behind handles, and knows a handle that is none.
template <class T>
class Handles {
 public:
  T* add(T object) {
    auto owned = std::make_unique<T>(std::move(object));
    T* handle = owned.get();
    live_.emplace(handle, std::move(owned));
    return handle;
  }
  T& at(T* handle) const {
    if (!live_.contains(handle)) throw Error{cudaErrorInvalidResourceHandle};
    return *handle;
  }
  void erase(T* handle) { live_.erase(handle); }
  void clear() { live_.clear(); }
  const std::map<T*, std::unique_ptr<T>>& all() const { return live_; }

 private:
  std::map<T*, std::unique_ptr<T>> live_;
};

struct Runtime {
  explicit Runtime(const Config& config);
  ~Runtime();

  // queues.cpp
  Queue* new_queue(int device);
  void retire(Queue* queue);
  Node* enqueue(Queue& queue, std::shared_ptr<const Work> work, std::vector<Node*> after = {}, const Clock& clock = {});
  void wait(Node* node);
  bool is_done(Node* node);  // a little work goes on meanwhile, or a host that polls would never see it
  void wait_queue(Queue& queue);
  void wait_all();
  void step(bool must = true);  // there must be something to run
  void let_hung_work_finish();
  void forget_done();
  void count(const Work& work);

  // streams.cpp
  CUstream_st& stream(cudaStream_t handle);
  // Queued, or recorded where the stream is captured.
  void submit(CUstream_st& stream, std::shared_ptr<const Work> work);
  int valid_device(int device) const;

  // graphs.cpp
  [[noreturn]] void capture_error(Capture& capture, cudaError_t code, const std::string& why);
  void not_while_capturing(const char* call);                // where a capture forbids unsafe calls
  void not_captured(CUstream_st& stream, const char* call);  // where this stream is in a capture
  void end_capture(std::shared_ptr<Capture> capture);
  void leave_capture(CUstream_st& stream);  // destroyed in the middle of it
  void destroy_graph(CUgraph_st* graph);

  // user_objects.cpp
  void retain(std::vector<CUuserObject_st*>& into, const std::vector<CUuserObject_st*>& objects);
  void release(const std::vector<CUuserObject_st*>& objects);
  void release_after(Node* node, std::vector<CUuserObject_st*> objects);
  void release_what_is_done();

  void report(const std::string& violation) { checker.report(violation); }
  void report_leaks();

  Config config;
  Memory memory;
  Checker checker;
  Rng rng;
  std::deque<Node> nodes;
  std::vector<std::unique_ptr<Queue>> queues;
  std::deque<CUstream_st> legacy;  // by device
  std::vector<std::shared_ptr<Capture>> captures;
  Handles<CUstream_st> streams;
  Handles<CUevent_st> events;
  Handles<CUgraph_st> graphs;
  Handles<CUgraphNode_st> graph_nodes;
  Handles<CUuserObject_st> user_objects;
  std::vector<std::pair<Node*, std::vector<CUuserObject_st*>>> released_after;
  Handles<CUgraphExec_st> execs;
  std::map<const void*, int> dynamic_smem_bytes;
  std::set<int> contexts;  // devices that have a primary context
  std::vector<Failure> failures;
  int driver_version = CUDART_VERSION;
  int64_t interruption_in = 0;  // calls; 0: none
  std::function<void()> interruption;
  std::vector<const char*> calls;
  std::string failed_call;
  int64_t work_queued = 0;
  int64_t graphs_launched = 0;
  Traffic traffic;
};

Runtime& runtime();
std::mutex& runtime_mutex();
bool unloading();

// The error that a test asked this call to return, or success.
cudaError_t count_call(Runtime& runtime, const char* name);

// A new thread has a context once a call has needed one, and the device that is current in it has one from then on.
// Those that only ask do not: to be on the safe side, all that CUDA does not say it of.
void made(const char* call);

// Whether a user object's destructor runs in this thread, where CUDA may not be called; says so.
bool in_a_destructor(const char* call);

// Runs what a test wants to happen before this call.
void let_interrupt(std::unique_lock<std::mutex>& lock);

// Every API function: `body` does it, or throws Error; `give_up` runs in its place where it is made to
// fail.
template <class Body, class GiveUp>
cudaError_t call(const char* name, const Body& body, const GiveUp& give_up) {
  if (unloading()) return cudaErrorCudartUnloading;
  if (in_a_destructor(name)) return cudaErrorNotPermitted;
  std::unique_lock lock(runtime_mutex());
  let_interrupt(lock);
  Runtime& rt = runtime();
  rt.release_what_is_done();
  cudaError_t code = count_call(rt, name);
  try {
    if (code == cudaSuccess)
      body(rt);
    else
      give_up(rt);
  } catch (const Error& error) {
    if (code == cudaSuccess) code = error.code;
  }
  if (code != cudaSuccess)
    host_thread().last_error = code;
  else
    made(name);
  return code;
}
template <class Body>
cudaError_t call(const char* name, const Body& body) {
  return call(name, body, [](Runtime&) {});
}

inline void require(bool condition, cudaError_t code) {
  if (!condition) throw Error{code};
}

}  // namespace virtual_cuda
