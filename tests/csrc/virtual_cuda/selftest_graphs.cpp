// What a capture forbids, and what becomes of it when something fails.
#include <memory>
#include <thread>

#include "selftest.h"

using namespace selftest;

// `bad` is called while s0 captures; its error, and what EndCapture says then.
static void capturing(cudaError_t expected, cudaError_t at_end,
                      const std::function<cudaError_t(cudaStream_t, cudaStream_t, cudaEvent_t)>& bad,
                      unsigned flags = cudaStreamNonBlocking,
                      cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal) {
  virtual_cuda::reset({});
  Stream s0(0, flags), s1(0);
  Event event(0);
  cudaGraph_t graph;
  OK(cudaStreamBeginCapture(s0, mode));
  OK(cudaEventRecord(event, s0));
  CHECK(bad(s0, s1, event) == expected);
  CHECK(cudaStreamEndCapture(s0, &graph) == at_end && (graph == nullptr) == (at_end != cudaSuccess));
  CHECK(at_end != cudaErrorStreamCaptureInvalidated || reported("not allowed while capturing"));
  if (graph != nullptr) OK(cudaGraphDestroy(graph));
}

TEST(calls_that_end_a_capture) {
  const auto unsupported = cudaErrorStreamCaptureUnsupported, invalidated = cudaErrorStreamCaptureInvalidated;
  using S = cudaStream_t;
  using E = cudaEvent_t;
  static void* pointer;
  capturing(unsupported, invalidated, [](S, S, E) { return cudaMalloc(&pointer, 4); });
  capturing(unsupported, invalidated, [](S, S, E) { return cudaFree(nullptr); });
  capturing(unsupported, invalidated, [](S, S, E) { return cudaMallocHost(&pointer, 4); });
  static cudaIpcMemHandle_t handle;
  capturing(unsupported, invalidated, [](S, S, E) { return cudaIpcGetMemHandle(&handle, nullptr); });
  capturing(unsupported, invalidated, [](S, S, E) { return cudaIpcOpenMemHandle(&pointer, handle, 1); });
  capturing(unsupported, invalidated, [](S, S, E) { return cudaIpcCloseMemHandle(nullptr); });
  capturing(unsupported, invalidated, [](S s0, S, E) { return cudaStreamSynchronize(s0); });
  capturing(unsupported, invalidated, [](S s0, S, E) { return cudaStreamQuery(s0); });
  capturing(unsupported, invalidated, [](S, S, E) { return cudaDeviceSynchronize(); });
  capturing(cudaErrorCapturedEvent, invalidated, [](S, S, E event) { return cudaEventQuery(event); });
  capturing(cudaErrorStreamCaptureImplicit, invalidated,
            [](S, S, E event) { return cudaStreamWaitEvent(nullptr, event); });
  auto legacy = [](S, S, E) { return launch(nullptr, {nullptr, nullptr, nullptr, 0}); };
  capturing(cudaErrorStreamCaptureImplicit, invalidated, legacy, cudaStreamDefault);
  capturing(cudaSuccess, cudaSuccess, legacy);
  capturing(cudaErrorStreamCaptureIsolation, invalidated, [](S s0, S s1, E event) {
    OK(cudaEventRecord(event, s1));
    return cudaStreamWaitEvent(s0, event);
  });
  capturing(cudaSuccess, cudaErrorStreamCaptureUnjoined, [](S, S s1, E event) {
    OK(cudaStreamWaitEvent(s1, event));
    return launch(s1, {nullptr, nullptr, nullptr, 0});
  });
  auto allocate = [](S, S, E) {
    const cudaError_t error = cudaMalloc(&pointer, 4);
    return error == cudaSuccess ? cudaFree(pointer) : error;
  };
  capturing(cudaSuccess, cudaSuccess, allocate, cudaStreamNonBlocking, cudaStreamCaptureModeRelaxed);
  capturing(cudaSuccess, cudaSuccess, [&](S s0, S s1, E event) {
    auto mode = cudaStreamCaptureModeRelaxed;
    OK(cudaThreadExchangeStreamCaptureMode(&mode));
    const cudaError_t error = allocate(s0, s1, event);
    OK(cudaThreadExchangeStreamCaptureMode(&mode));
    return error;
  });
  virtual_cuda::reset({});
  cudaGraph_t graph;
  CHECK(cudaStreamBeginCapture(nullptr, cudaStreamCaptureModeGlobal) == unsupported);
  CHECK(cudaStreamEndCapture(nullptr, &graph) == cudaErrorIllegalState);
}

TEST(a_global_capture_forbids_calls_of_other_threads) {
  for (auto mode : {cudaStreamCaptureModeGlobal, cudaStreamCaptureModeThreadLocal}) {
    virtual_cuda::reset({});
    Stream s(0);
    cudaGraph_t graph;
    OK(cudaStreamBeginCapture(s, mode));
    const bool global = mode == cudaStreamCaptureModeGlobal;
    std::thread([&] { CHECK((cudaFree(nullptr) == cudaErrorStreamCaptureUnsupported) == global); }).join();
    CHECK((cudaStreamEndCapture(s, &graph) == cudaErrorStreamCaptureInvalidated) == global);
    CHECK(reported("not allowed while capturing: cudaFree") == global);
    if (graph != nullptr) OK(cudaGraphDestroy(graph));
  }
}

// Doubles a in a graph; whatever fails, nothing is left behind and no stream stays captured.
static cudaError_t careful_capture(const Stream& s, int* a) {
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t exec = nullptr;
  if (const auto error = cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal)) return error;
  const auto recorded = launch(s, {a, a, a});
  auto error = cudaStreamEndCapture(s, &graph);
  if (recorded) error = recorded;
  if (!error) error = cudaGraphInstantiate(&exec, graph);
  if (!error) error = cudaGraphLaunch(exec, s);
  if (exec) {
    const auto destroyed = cudaGraphExecDestroy(exec);
    if (!error) error = destroyed;
  }
  if (graph) {
    const auto destroyed = cudaGraphDestroy(graph);
    if (!error) error = destroyed;
  }
  return error;
}

TEST(every_call_of_a_capture_can_fail) {
  virtual_cuda::reset({});
  Buffer a(0, 1);
  Stream s(0);
  for (int64_t n = 1; n <= 8; ++n) {
    virtual_cuda::fail_call(n, cudaErrorUnknown);
    CHECK(careful_capture(s, a.pointer) == (n == 8 ? cudaSuccess : cudaErrorUnknown));
    virtual_cuda::forget_failures();
    cudaStreamCaptureStatus status;
    OK(cudaStreamGetCaptureInfo(s, &status));
    CHECK(status == cudaStreamCaptureStatusNone);
  }
  OK(cudaStreamSynchronize(s));
  CHECK(a.holds(1 << 3));  // the two destroys that fail come after the launch
}

TEST(a_graph_launched_into_a_capture_becomes_part_of_it) {
  virtual_cuda::reset({});
  Buffer a(0, 1);
  Stream s(0);
  cudaGraph_t inner, outer;
  cudaGraphExec_t inner_exec, outer_exec;
  OK(cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal));
  OK(launch(s, {a.pointer, a.pointer, a.pointer}));
  OK(cudaStreamEndCapture(s, &inner));
  OK(cudaGraphInstantiate(&inner_exec, inner));
  OK(cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal));
  OK(cudaGraphLaunch(inner_exec, s));
  OK(cudaGraphLaunch(inner_exec, s));
  OK(cudaStreamEndCapture(s, &outer));
  OK(cudaGraphInstantiate(&outer_exec, outer));
  OK(cudaGraphLaunch(outer_exec, s));
  OK(cudaStreamSynchronize(s));
  CHECK(a.holds(4));
  for (auto exec : {inner_exec, outer_exec}) OK(cudaGraphExecDestroy(exec));
  for (auto graph : {inner, outer}) OK(cudaGraphDestroy(graph));
}

TEST(a_graph_may_not_use_memory_freed_since) {
  virtual_cuda::reset({});
  Stream s(0);
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  {
    Buffer a(0);
    OK(cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal));
    OK(launch(s, {a.pointer, nullptr, a.pointer}));
    OK(cudaStreamEndCapture(s, &graph));
    OK(cudaGraphInstantiate(&exec, graph));
  }
  OK(cudaGraphLaunch(exec, s));
  CHECK(reported("use after free: kernel(selftest::Add) on device 0 reads"));
  OK(cudaGraphExecDestroy(exec));
  OK(cudaGraphDestroy(graph));
}

// A ring of sixteen: what device 0 holds travels round.
TEST(sixteen_devices_and_two_host_threads) {
  constexpr int devices = 16;
  virtual_cuda::reset({.devices = devices});
  enable_peers(devices);
  auto ring = [] {
    std::vector<std::unique_ptr<Buffer>> buffers;
    std::vector<std::unique_ptr<Stream>> streams;
    std::vector<std::unique_ptr<Event>> events;
    for (int d = 0; d < devices; ++d) {
      buffers.push_back(std::make_unique<Buffer>(d, d == 0 ? 7 : 0));
      streams.push_back(std::make_unique<Stream>(d));
      events.push_back(std::make_unique<Event>(d));
    }
    for (int d = 1; d < devices; ++d) {
      cudaSetDevice(d);
      OK(cudaEventRecord(*events[d - 1], *streams[d - 1]));
      OK(cudaStreamWaitEvent(*streams[d], *events[d - 1]));
      OK(launch(*streams[d], {buffers[d - 1]->pointer, nullptr, buffers[d]->pointer}));
    }
    OK(cudaStreamSynchronize(*streams.back()));
    CHECK(buffers.back()->holds(7));
  };
  std::thread other(ring);
  ring();
  other.join();
}

// As it goes to streams, and as often as a graph of the same is launched.
TEST(traffic_between_devices_is_counted) {
  virtual_cuda::reset({});
  enable_peers(2);
  Buffer here(0, 1), there(1, 2);
  Stream s0(0), s1(1);
  Event mine(0), joined(1);
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  const auto work = [&] {
    cudaSetDevice(0);
    OK(launch(s0, {here.pointer, there.pointer, there.pointer}));
    OK(cudaEventRecord(mine, s0));
    OK(cudaStreamWaitEvent(s0, mine));  // its own
    OK(cudaStreamWaitEvent(s1, mine));
    OK(cudaMemcpyAsync(here.pointer, there.pointer, kBytes, cudaMemcpyDeviceToDevice, s1));
    OK(cudaEventRecord(joined, s1));
  };
  const auto counted = [](int times, const virtual_cuda::Traffic& found) {
    const int64_t bytes = times * static_cast<int64_t>(kBytes);
    return found.kernels == times && found.copies == times && found.waits == times &&
           found.bytes == decltype(found.bytes){{{0, 1}, bytes}, {{1, 0}, 2 * bytes}};
  };
  virtual_cuda::take_traffic();
  work();
  CHECK(counted(1, virtual_cuda::take_traffic()));
  OK(cudaStreamSynchronize(s1));
  OK(cudaStreamBeginCapture(s0, cudaStreamCaptureModeGlobal));
  work();
  OK(cudaStreamWaitEvent(s0, joined));
  OK(cudaStreamEndCapture(s0, &graph));
  OK(cudaGraphInstantiate(&exec, graph));
  CHECK(virtual_cuda::take_traffic().kernels == 0);
  for (int times = 0; times < 2; ++times) OK(cudaGraphLaunch(exec, s0));
  const auto twice = virtual_cuda::take_traffic();
  CHECK(counted(2, twice) && !counted(1, twice));
  OK(cudaStreamSynchronize(s0));
  OK(cudaGraphExecDestroy(exec));
  OK(cudaGraphDestroy(graph));
}
