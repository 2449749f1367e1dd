// Every kind of violation is found, whatever the order in which things happened to run.
#include <set>

#include "selftest.h"

using namespace selftest;

TEST(a_dropped_wait_is_found_in_every_order) {
  in_many_orders({}, [] {
    enable_peers(2);
    Buffer a(0, 1), b(1, 2);
    Stream s0(0), s1(1);
    cudaSetDevice(0);
    OK(launch(s0, {a.pointer, a.pointer, a.pointer}));
    cudaSetDevice(1);
    OK(launch(s1, {a.pointer, b.pointer, b.pointer}));
    OK(cudaStreamSynchronize(s0));
    OK(cudaStreamSynchronize(s1));
    CHECK(reported("unordered: kernel(selftest::Add) on device 1 reads bytes 0 to 256"));
  }, kRacesOnThreads ? 5 : 0);
}

TEST(unordered_work_takes_different_orders) {
  std::set<int> results;
  in_many_orders({}, [&] {
    Buffer a(0, 1);
    Stream s0(0), s1(0);
    OK(launch(s0, {a.pointer, a.pointer, a.pointer}));
    OK(cudaMemsetAsync(a.pointer, 1, kBytes, s1));
    OK(cudaDeviceSynchronize());
    results.insert(a.read()[0]);
    CHECK(reported("unordered: memset on device 0 writes"));
  }, kRacesOnThreads ? 5 : 0);
  CHECK(results == std::set<int>({0x01010101, 0x02020202}));
}

TEST(reading_results_without_waiting_is_found) {
  virtual_cuda::reset(kRacing);
  Buffer a(0, 1), b(0, 2);
  Stream s(0);
  OK(launch(s, {a.pointer, b.pointer, a.pointer}));
  a.read();
  CHECK(reported("unordered: copy from device 0 to the host reads"));
  b.read();
  CHECK(virtual_cuda::violations().empty());
  virtual_cuda::host_reads(a.pointer, 4);
  CHECK(reported("unordered: the host reads bytes 0 to 4 of 256 on device 0"));
  OK(cudaStreamSynchronize(s));
}

TEST(what_the_host_copied_up_has_not_arrived) {
  virtual_cuda::reset(kRacing);
  Buffer a(0), b(0);
  Stream s(0);
  const std::vector<int> values(kElems, 7);
  OK(cudaMemcpy(a.pointer, values.data(), kBytes, cudaMemcpyHostToDevice));
  OK(launch(s, {a.pointer, nullptr, b.pointer}));
  CHECK(reported("unordered: kernel(selftest::Add) on device 0 reads bytes 0 to 256"));
  OK(cudaDeviceSynchronize());
  CHECK(a.holds(7));
}

TEST(a_recorded_event_orders_only_what_came_before_it) {
  virtual_cuda::reset(kRacing);
  Buffer a(0, 1);
  Stream s0(0), s1(0);
  Event event(0);
  OK(launch(s0, {a.pointer, a.pointer, a.pointer}));
  OK(cudaEventRecord(event, s0));
  OK(cudaStreamWaitEvent(s1, event));
  OK(launch(s1, {a.pointer, a.pointer, a.pointer}));
  CHECK(virtual_cuda::violations().empty());
  OK(launch(s0, {a.pointer, a.pointer, a.pointer}));
  CHECK(reported("unordered"));
  OK(cudaDeviceSynchronize());
}

TEST(a_write_must_wait_for_every_reader) {
  virtual_cuda::reset(kRacing);
  Buffer a(0, 1), b(0), c(0);
  Stream s0(0), s1(0);
  Event event(0);
  OK(launch(s0, {a.pointer, nullptr, b.pointer}));
  OK(launch(s1, {a.pointer, nullptr, c.pointer}));
  CHECK(virtual_cuda::violations().empty());
  OK(cudaMemsetAsync(a.pointer, 0, kBytes, s1));
  CHECK(reported("unordered: memset on device 0 writes"));
  OK(cudaEventRecord(event, s1));
  OK(cudaEventSynchronize(event));
  c.read();
  CHECK(virtual_cuda::violations().empty());
  b.read();
  CHECK(reported("unordered: copy from device 0 to the host reads"));
  OK(cudaDeviceSynchronize());
}

TEST(a_read_does_not_hide_the_write_before_it) {
  virtual_cuda::reset(kRacing);
  Buffer a(0, 1), b(0), c(0);
  Stream s0(0), s1(0);
  OK(cudaMemsetAsync(a.pointer, 0, kBytes, s0));
  OK(launch(s0, {a.pointer, nullptr, b.pointer}));
  CHECK(virtual_cuda::violations().empty());
  OK(launch(s1, {a.pointer, nullptr, c.pointer}));
  CHECK(reported("unordered: kernel(selftest::Add) on device 0 reads"));
  OK(cudaDeviceSynchronize());
}

TEST(unordered_branches_of_a_graph_are_found_at_launch) {
  virtual_cuda::reset(kRacing);
  Buffer a(0, 1);
  Stream s0(0), s1(0);
  Event fork(0), join(0);
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  OK(cudaStreamBeginCapture(s0, cudaStreamCaptureModeThreadLocal));
  OK(cudaEventRecord(fork, s0));
  OK(cudaStreamWaitEvent(s1, fork));
  OK(launch(s0, {a.pointer, a.pointer, a.pointer}));
  OK(launch(s1, {a.pointer, a.pointer, a.pointer}));
  OK(cudaEventRecord(join, s1));
  OK(cudaStreamWaitEvent(s0, join));
  OK(cudaStreamEndCapture(s0, &graph));
  OK(cudaGraphInstantiate(&exec, graph));
  CHECK(virtual_cuda::violations().empty());
  OK(cudaGraphLaunch(exec, s0));
  CHECK(reported("unordered"));
  OK(cudaDeviceSynchronize());
  OK(cudaGraphExecDestroy(exec));
  OK(cudaGraphDestroy(graph));
}

TEST(peer_access_must_be_enabled) {
  virtual_cuda::reset({});
  Buffer a(0, 1), b(1, 2);
  Stream s(0);
  OK(launch(s, {b.pointer, nullptr, a.pointer}));
  OK(cudaStreamSynchronize(s));
  CHECK(reported("no peer access: kernel(selftest::Add) on device 0 reads"));
  CHECK(a.holds(1));
  cudaSetDevice(0);
  OK(cudaDeviceEnablePeerAccess(1, 0));
  OK(launch(s, {b.pointer, nullptr, a.pointer}));
  OK(cudaStreamSynchronize(s));
  CHECK(a.holds(2));
  cudaSetDevice(0);
  OK(cudaDeviceDisablePeerAccess(1));
  OK(launch(s, {a.pointer, nullptr, b.pointer}));
  CHECK(reported("no peer access: kernel(selftest::Add) on device 0 writes"));
}

TEST(bounds_and_lifetimes_are_checked) {
  virtual_cuda::reset(kRacing);
  Stream s(0);
  int* freed;
  {
    Buffer a(0, 1);
    freed = a.pointer;
    OK(launch(s, {a.pointer, nullptr, a.pointer, kElems + 1}));
    CHECK(reported("out of bounds: kernel(selftest::Add) on device 0 reads bytes 0 to 260 of 256"));
    OK(cudaMemsetAsync(a.pointer, 0, kBytes, s));
  }
  CHECK(reported("use after free: memset on device 0 is queued and not waited for"));
  OK(cudaMemsetAsync(freed, 0, kBytes, s));
  CHECK(reported("use after free: memset on device 0 writes"));
  CHECK(cudaFree(freed) == cudaErrorInvalidValue && reported("cudaFree of what is no allocation"));
  std::vector<int> ordinary(kElems);
  OK(launch(s, {ordinary.data(), nullptr, ordinary.data()}));
  CHECK(reported("not visible to a device"));
}

static void undeclared(int* pointer) { *pointer = 1; }

TEST(kernels_must_declare_what_they_touch) {
  virtual_cuda::reset({.linear = true, .verify_writes = true});
  Buffer a(0, 1), b(0, 2);
  Stream s(0);
  const cudaLaunchConfig_t config{1, 1, 0, s, nullptr, 0};
  OK(cudaLaunchKernelEx(&config, undeclared, a.pointer));
  CHECK(reported("has no declare_accesses"));
  OK(launch(s, {a.pointer, nullptr, b.pointer, 8, 1}));
  OK(cudaStreamSynchronize(s));
  CHECK(reported("undeclared write: kernel(selftest::Add) on device 0 writes bytes 32 to 33 of 256"));
}

#ifndef __SANITIZE_ADDRESS__
TEST(one_element_too_far_is_found_at_the_free) {
  virtual_cuda::reset(kRacing);
  Buffer a(0);
  {
    Stream s(0);
    OK(launch(s, {a.pointer, a.pointer, a.pointer, kElems, 1}));
    OK(cudaStreamSynchronize(s));
  }
  CHECK(virtual_cuda::violations().empty());
  OK(cudaFree(std::exchange(a.pointer, nullptr)));
  CHECK(reported("out of bounds: something wrote next to bytes 0 to 256"));
}
#endif

TEST(leaks_are_found) {
  for (const std::string what : {"streams", "events", "graphs", "captures", "memory"}) {
    virtual_cuda::reset({});
    cudaStream_t stream;
    cudaEvent_t event;
    cudaGraph_t graph;
    void* memory;
    if (what == "events") OK(cudaEventCreateWithFlags(&event, 0));
    if (what == "memory") OK(cudaMalloc(&memory, 1));
    if (what == "streams" || what == "graphs" || what == "captures")
      OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    if (what == "graphs" || what == "captures") OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
    if (what == "graphs") OK(cudaStreamEndCapture(stream, &graph));
    virtual_cuda::check_clean();
    CHECK(reported(what));
    virtual_cuda::reset({});
    CHECK(reported("leak"));
  }
}

// The controls are run by name, one in a process: each must make the process fail.

TEST(control_violation_left_behind) { launch(nullptr, {nullptr, nullptr, nullptr}); }

// Declares nothing wrong: only ThreadSanitizer sees that both kernels write past what they declare.
TEST(control_race) {
  virtual_cuda::reset({});
  Buffer a(0);
  Stream s0(0), s1(0);
  OK(launch(s0, {a.pointer, nullptr, a.pointer, 8, 8}));
  OK(launch(s1, {a.pointer + 16, nullptr, a.pointer + 8, 4, 0}));
  OK(cudaDeviceSynchronize());
}

TEST(control_overrun) {
  virtual_cuda::reset({});
  Buffer a(0);
  Stream s(0);
  OK(launch(s, {a.pointer, nullptr, a.pointer, kElems, 1}));
  OK(cudaStreamSynchronize(s));
}
