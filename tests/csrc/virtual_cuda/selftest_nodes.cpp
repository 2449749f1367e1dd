// Graphs built node by node, their updates, and what they keep alive.
#include <atomic>
#include <thread>

#include "selftest.h"

using namespace selftest;

static const virtual_cuda::KernelsTake<Add> kernels_take;

// A graph under construction, and what is instantiated from it.
struct Nodes {
  Nodes() { OK(cudaGraphCreate(&graph, 0)); }
  ~Nodes() {
    if (exec) cudaGraphExecDestroy(exec);
    if (graph) cudaGraphDestroy(graph);
  }
  Nodes(const Nodes&) = delete;

  struct Kernel : cudaKernelNodeParams {
    explicit Kernel(Add args) : args(args) {
      static_cast<cudaKernelNodeParams&>(*this) = {reinterpret_cast<void*>(add), 4, 128, 0, parameters, nullptr};
    }
    Add args;
    void* parameters[1] = {&args};
  };
  using After = std::vector<cudaGraphNode_t>;

  cudaError_t add_kernel(cudaGraphNode_t* node, int device, Add args, const After& after) {
    cudaSetDevice(device);
    const Kernel kernel(args);
    return cudaGraphAddKernelNode(node, graph, after.data(), after.size(), &kernel);
  }
  cudaGraphNode_t kernel(int device, Add args, const After& after = {}) {
    cudaGraphNode_t node = nullptr;
    OK(add_kernel(&node, device, args, after));
    return node;
  }
  cudaGraphNode_t copy(const Buffer& dst, const Buffer& src, const After& after = {}) {
    cudaGraphNode_t node;
    OK(cudaGraphAddMemcpyNode1D(&node, graph, after.data(), after.size(), dst.pointer, src.pointer, kBytes,
                                cudaMemcpyDeviceToDevice));
    return node;
  }
  cudaError_t update(cudaGraphNode_t node, Add args) {
    const Kernel kernel(args);
    return cudaGraphExecKernelNodeSetParams(exec, node, &kernel);
  }
  cudaError_t update(cudaGraphNode_t node, const Buffer& dst, const Buffer& src, size_t bytes = kBytes) {
    return cudaGraphExecMemcpyNodeSetParams1D(exec, node, dst.pointer, src.pointer, bytes, cudaMemcpyDeviceToDevice);
  }
  void launch(cudaStream_t stream) {
    if (!exec) OK(cudaGraphInstantiate(&exec, graph));
    OK(cudaGraphLaunch(exec, stream));
  }

  cudaGraph_t graph = nullptr;
  cudaGraphExec_t exec = nullptr;
};

// a <- a + a and b <- b + b on two devices, c <- b by the copy engine, a <- a + b after all three.
TEST(nodes_run_in_the_order_of_their_dependencies) {
  in_many_orders({}, [] {
    {
      enable_peers(2);
      Buffer a(0, 1), b(1, 2), c(0);
      Stream s(0);
      Nodes nodes;
      const auto twice_a = nodes.kernel(0, {a.pointer, a.pointer, a.pointer});
      const auto twice_b = nodes.kernel(1, {b.pointer, b.pointer, b.pointer});
      const auto copied = nodes.copy(c, b, {twice_b});
      nodes.kernel(0, {a.pointer, b.pointer, a.pointer}, {twice_a, twice_b, copied});
      nodes.launch(s);
      nodes.launch(s);
      OK(cudaStreamSynchronize(s));
      CHECK(a.holds(20) && b.holds(8) && c.holds(8));
    }
    CHECK(clean());
  });
}

TEST(nodes_without_a_dependency_are_not_ordered) {
  virtual_cuda::reset(kRacing);
  Buffer a(0, 1);
  Stream s(0);
  Nodes nodes;
  for (int i = 0; i < 2; ++i) nodes.kernel(0, {a.pointer, nullptr, a.pointer});
  nodes.launch(s);
  OK(cudaStreamSynchronize(s));
  CHECK(reported("unordered: kernel(selftest::Add) on device 0 writes"));
}

TEST(dependencies_are_nodes_of_the_graph_and_differ) {
  virtual_cuda::reset({});
  Buffer a(0);
  Nodes nodes, others;
  const Add args{a.pointer, nullptr, a.pointer};
  const auto first = nodes.kernel(0, args), foreign = others.kernel(0, args);
  cudaGraphNode_t node;
  CHECK(nodes.add_kernel(&node, 0, args, {first, first}) == cudaErrorInvalidValue);
  CHECK(nodes.add_kernel(&node, 0, args, {foreign}) == cudaErrorInvalidValue);
  OK(cudaGraphDestroy(std::exchange(others.graph, nullptr)));
  CHECK(nodes.add_kernel(&node, 0, args, {foreign}) == cudaErrorInvalidResourceHandle);
}

// The launch that was queued before the update does what it was queued for.
TEST(updates_are_for_later_launches) {
  in_many_orders({}, [] {
    {
      enable_peers(2);
      Buffer a(0, 1), b(0, 2), c(0, 3), d(1);
      Stream s(0);
      Nodes nodes;
      const auto sum = nodes.kernel(0, {a.pointer, b.pointer, c.pointer});
      const auto copied = nodes.copy(d, c, {sum});
      nodes.launch(s);
      OK(nodes.update(sum, {a.pointer, a.pointer, b.pointer}));
      OK(nodes.update(copied, d, a));
      nodes.launch(s);
      OK(cudaStreamSynchronize(s));
      CHECK(b.holds(2) && c.holds(3) && d.holds(1));
    }
    CHECK(clean());
  });
}

TEST(updates_that_cannot_be) {
  virtual_cuda::reset({});
  enable_peers(2);
  Buffer a(0), b(0), c(1), d(1);
  Stream s(0);
  Nodes nodes;
  const Add args{a.pointer, nullptr, a.pointer};
  const auto kernel = nodes.kernel(0, args), copied = nodes.copy(a, c, {kernel});
  nodes.launch(s);
  OK(cudaStreamSynchronize(s));
  OK(cudaSetDevice(0));
  CHECK(nodes.update(copied, args) == cudaErrorInvalidValue);
  CHECK(nodes.update(kernel, a, c) == cudaErrorInvalidValue);
  CHECK(nodes.update(copied, a, b) == cudaErrorInvalidValue);  // from another device than before
  CHECK(nodes.update(copied, a, d, 0) == cudaErrorInvalidValue);
  OK(nodes.update(copied, b, d));
  const auto later = nodes.kernel(0, args);
  CHECK(nodes.update(later, args) == cudaErrorInvalidValue);
  OK(cudaSetDevice(1));
  CHECK(nodes.update(kernel, args) == cudaErrorInvalidValue);  // of another device than before
  OK(cudaSetDevice(0));
  OK(cudaGraphDestroy(std::exchange(nodes.graph, nullptr)));
  CHECK(nodes.update(kernel, args) == cudaErrorInvalidResourceHandle);
}

// What another thread's synchronization does to a capture, whatever its mode; a graph that is built is no capture.
TEST(a_synchronization_of_another_thread_breaks_captures_only) {
  for (auto mode : {cudaStreamCaptureModeGlobal, cudaStreamCaptureModeThreadLocal, cudaStreamCaptureModeRelaxed}) {
    virtual_cuda::reset({});
    Stream s(0);
    cudaGraph_t graph;
    OK(cudaStreamBeginCapture(s, mode));
    std::thread([] { CHECK(cudaDeviceSynchronize() == cudaErrorStreamCaptureUnsupported); }).join();
    CHECK(launch(s, {}) == cudaErrorStreamCaptureInvalidated);
    CHECK(cudaStreamEndCapture(s, &graph) == cudaErrorStreamCaptureInvalidated);
    CHECK(reported("not allowed while capturing: cudaDeviceSynchronize"));
  }
  virtual_cuda::reset({});
  Buffer a(0, 1);
  Stream s(0);
  Nodes nodes;
  nodes.kernel(0, {a.pointer, a.pointer, a.pointer});
  virtual_cuda::interrupt_call(1, [] { OK(cudaDeviceSynchronize()); });
  nodes.launch(s);
  OK(cudaStreamSynchronize(s));
  CHECK(a.holds(2));
}

static std::atomic<int> destroyed{0}, free_in_destructor{0};
static void destroy(void*) { ++destroyed; }
static void destroy_by_cuda(void*) { free_in_destructor = cudaFree(nullptr); }

TEST(user_objects_live_as_long_as_graphs_and_their_launches) {
  virtual_cuda::reset({.linear = true});
  destroyed = 0;
  Buffer a(0, 1);
  Stream s(0);
  cudaUserObject_t object;
  cudaGraph_t graph;
  {
    Nodes nodes;
    OK(cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal));
    OK(launch(s, {a.pointer, a.pointer, a.pointer}));
    cudaStreamCaptureStatus status;
    OK(cudaStreamGetCaptureInfo(s, &status, nullptr, &graph));
    OK(cudaUserObjectCreate(&object, nullptr, destroy, 1, cudaUserObjectNoDestructorSync));
    OK(cudaGraphRetainUserObject(graph, object, 1, cudaGraphUserObjectMove));
    OK(cudaGraphDestroy(std::exchange(nodes.graph, nullptr)));
    OK(cudaStreamEndCapture(s, &nodes.graph));
    CHECK(nodes.graph == graph);
    nodes.launch(s);
    OK(cudaGraphDestroy(std::exchange(nodes.graph, nullptr)));
    CHECK(destroyed == 0);
  }
  CHECK(destroyed == 0);  // the launch may still run
  OK(cudaStreamSynchronize(s));
  CHECK(destroyed == 1);
  OK(cudaUserObjectCreate(&object, nullptr, destroy, 2, cudaUserObjectNoDestructorSync));
  OK(cudaUserObjectRelease(object));
  CHECK(destroyed == 1);
  OK(cudaUserObjectRelease(object));
  CHECK(destroyed == 2);
}

TEST(a_capture_that_fails_releases_user_objects) {
  virtual_cuda::reset({});
  destroyed = 0;
  Stream s(0);
  cudaStreamCaptureStatus status;
  cudaUserObject_t object;
  cudaGraph_t graph;
  OK(cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal));
  OK(cudaStreamGetCaptureInfo(s, &status, nullptr, &graph));
  OK(cudaUserObjectCreate(&object, nullptr, destroy, 1, cudaUserObjectNoDestructorSync));
  OK(cudaGraphRetainUserObject(graph, object, 1, cudaGraphUserObjectMove));
  CHECK(cudaDeviceSynchronize() == cudaErrorStreamCaptureUnsupported);
  CHECK(cudaStreamEndCapture(s, &graph) == cudaErrorStreamCaptureInvalidated && destroyed == 1);
  CHECK(reported("not allowed while capturing"));
}

TEST(destructors_of_user_objects_may_not_call_cuda) {
  virtual_cuda::reset({});
  cudaUserObject_t object;
  OK(cudaUserObjectCreate(&object, nullptr, destroy_by_cuda, 1, cudaUserObjectNoDestructorSync));
  OK(cudaUserObjectRelease(object));
  CHECK(free_in_destructor == cudaErrorNotPermitted);
  CHECK(reported("cudaFree in the destructor of a user object"));
}
