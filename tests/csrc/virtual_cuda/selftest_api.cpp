// Errors, lying pairs and calls that are made to fail.
#include "selftest.h"

using namespace selftest;

TEST(the_last_error_stays_until_it_is_read) {
  virtual_cuda::reset(
      {.devices = 3, .peers = {{false, true, false}, {true, false, true}, {true, true, false}}, .max_peers = 1});
  int can = 0;
  OK(cudaDeviceCanAccessPeer(&can, 0, 1));
  CHECK(can == 1);
  OK(cudaDeviceEnablePeerAccess(1, 0));
  CHECK(cudaDeviceEnablePeerAccess(1, 0) == cudaErrorPeerAccessAlreadyEnabled);
  OK(cudaDeviceCanAccessPeer(&can, 0, 2));
  CHECK(can == 0);
  CHECK(cudaPeekAtLastError() == cudaErrorPeerAccessAlreadyEnabled);
  CHECK(cudaGetLastError() == cudaErrorPeerAccessAlreadyEnabled && cudaGetLastError() == cudaSuccess);
  CHECK(cudaDeviceEnablePeerAccess(2, 0) == cudaErrorPeerAccessUnsupported);
  CHECK(cudaDeviceDisablePeerAccess(2) == cudaErrorPeerAccessNotEnabled);
  CHECK(cudaSetDevice(3) == cudaErrorInvalidDevice);
  OK(cudaSetDevice(2));
  OK(cudaDeviceEnablePeerAccess(0, 0));
  CHECK(cudaDeviceEnablePeerAccess(1, 0) == cudaErrorTooManyPeers);
  CHECK(cudaGetErrorName(cudaErrorTooManyPeers) == std::string("cudaErrorTooManyPeers"));
  CHECK(cudaGetErrorString(cudaErrorTooManyPeers) == std::string("peer mapping resources exhausted"));
}

struct Large {
  char bytes[32764];
};
static void large(Large) {}
void declare_accesses(const Large&, int, virtual_cuda::Accesses&) {}
struct TooLarge {
  char bytes[32765];
};
static void too_large(TooLarge) {}

TEST(wrong_calls_return_errors) {
  virtual_cuda::reset({.memory_bytes = 1 << 20});
  Buffer a(0);
  Stream s0(0), s1(1);
  Event e0(0);
  CHECK(cudaEventRecord(e0, s1) == cudaErrorInvalidResourceHandle);
  OK(cudaSetDevice(0));
  CHECK(launch(s1, {a.pointer, nullptr, a.pointer}) == cudaErrorInvalidResourceHandle);
  CHECK(cudaMemcpyAsync(a.pointer, a.pointer, 4, cudaMemcpyHostToDevice, s0) == cudaErrorInvalidValue);
  CHECK(cudaMemcpyPeerAsync(a.pointer, 1, a.pointer, 0, 4, s0) == cudaErrorInvalidValue);
  void* pointer;
  CHECK(cudaMalloc(&pointer, 1 << 20) == cudaErrorMemoryAllocation && pointer == nullptr);
  cudaLaunchConfig_t config{1, 1, 0, s0, nullptr, 0};
  OK(cudaLaunchKernelEx(&config, large, Large{}));
  CHECK(cudaLaunchKernelEx(&config, too_large, TooLarge{}) == cudaErrorInvalidValue);
  config.dynamicSmemBytes = 64 * 1024;
  CHECK(cudaLaunchKernelEx(&config, large, Large{}) == cudaErrorInvalidValue);
  OK(cudaFuncSetAttribute(large, cudaFuncAttributeMaxDynamicSharedMemorySize, 64 * 1024));
  OK(cudaLaunchKernelEx(&config, large, Large{}));
  config.gridDim = 0;
  CHECK(cudaLaunchKernelEx(&config, large, Large{}) == cudaErrorInvalidConfiguration);
  cudaStream_t gone;
  OK(cudaStreamCreateWithFlags(&gone, cudaStreamDefault));
  OK(cudaStreamDestroy(gone));
  CHECK(cudaStreamSynchronize(gone) == cudaErrorInvalidResourceHandle);
}

TEST(devices_and_pointers_describe_themselves) {
  virtual_cuda::reset({});
  Buffer a(1);
  cudaPointerAttributes attributes;
  OK(cudaPointerGetAttributes(&attributes, a.pointer + 3));
  CHECK(attributes.type == cudaMemoryTypeDevice && attributes.device == 1);
  OK(cudaPointerGetAttributes(&attributes, &a));
  CHECK(attributes.type == cudaMemoryTypeUnregistered);
  CHECK(virtual_cuda::allocated_bytes(1) == kBytes && virtual_cuda::allocated_bytes(0) == 0);
  cudaDeviceProp properties;
  OK(cudaGetDeviceProperties(&properties, 1));
  CHECK(properties.uuid.bytes == std::string("virtual-1"));
  int count = 0, blocks = 0;
  OK(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, 0));
  OK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, add, 128, 0));
  CHECK(count == 4 && properties.multiProcessorCount == 4 && blocks > 0);
}

TEST(devices_have_a_context_once_they_were_made_current) {
  virtual_cuda::reset({.devices = 3});
  int device = -1;
  OK(cudaGetDevice(&device));
  CHECK(device == 0 && virtual_cuda::contexts().empty());
  OK(cudaSetDevice(2));
  CHECK(virtual_cuda::contexts() == std::set{2});
}

TEST(events_that_were_never_recorded_hold_nothing_up) {
  virtual_cuda::reset({});
  Stream s(0);
  Event never(0), timed0(0, cudaEventDefault), timed1(0, cudaEventDefault);
  OK(cudaStreamWaitEvent(s, never));
  OK(cudaEventQuery(never));
  OK(cudaEventSynchronize(never));
  OK(cudaEventRecord(timed0, s));
  OK(cudaEventRecord(timed1, s));
  while (cudaEventQuery(timed1) == cudaErrorNotReady) continue;
  float ms = -1;
  OK(cudaEventElapsedTime(&ms, timed0, timed1));
  CHECK(ms >= 0);
  CHECK(cudaEventElapsedTime(&ms, never, timed1) == cudaErrorInvalidResourceHandle);
}

// What b of device 1 holds after a kernel and a copy of device 0, whose peer access lies.
static std::pair<int, int> through(virtual_cuda::Lie lie) {
  virtual_cuda::reset({.lies = {lie}});
  enable_peers(2);
  Buffer a(0, 1), b(1, 2), c(1, 2);
  Stream s(0);
  OK(launch(s, {a.pointer, nullptr, b.pointer}));
  OK(cudaMemcpyPeerAsync(c.pointer, 1, a.pointer, 0, kBytes, s));
  OK(cudaStreamSynchronize(s));
  return {b.read()[5], c.read()[5]};
}

TEST(lying_pairs_lose_data) {
  CHECK(through({1, 0}) == std::pair(1, 1));
  CHECK(through({0, 1}) == std::pair(2, 1));
  CHECK(through({0, 1, false, false, true}) == std::pair(1, 2));
  CHECK(through({0, 1, true, false, true, true}) == std::pair(1 ^ int(0xa5a5a5a5), 1 ^ int(0xa5a5a5a5)));
  virtual_cuda::reset({.lies = {{1, 0, false, true}}});
  enable_peers(2);
  Buffer a(0, 1), b(1, 2);
  Stream s(1);
  OK(launch(s, {a.pointer, nullptr, b.pointer}));
  OK(cudaStreamSynchronize(s));
  CHECK(!b.holds(1) && !b.holds(2) && a.holds(1));
}

// A program that gives up at the first error and leaves nothing behind.
static cudaError_t careful() {
  cudaStream_t stream;
  if (const auto error = cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking)) return error;
  int* memory = nullptr;
  auto error = cudaMalloc(&memory, kBytes);
  if (!error) error = cudaMemsetAsync(memory, 0, kBytes, stream);
  if (!error) error = launch(stream, {memory, nullptr, memory});
  const auto end = cudaStreamSynchronize(stream);
  if (end != cudaSuccess) (void)cudaStreamSynchronize(stream);
  const auto freed = cudaFree(memory), destroyed = cudaStreamDestroy(stream);
  for (auto later : {end, freed, destroyed})
    if (!error) error = later;
  return error;
}

TEST(every_call_can_be_made_to_fail) {
  virtual_cuda::reset({});
  OK(careful());
  const auto names = virtual_cuda::calls();
  CHECK(names.size() == 7 && names[3] == "cudaLaunchKernelEx");
  for (size_t n = 0; n < names.size(); ++n) {
    virtual_cuda::reset({});
    virtual_cuda::fail_call(static_cast<int64_t>(n) + 1, cudaErrorLaunchFailure);
    CHECK(careful() == cudaErrorLaunchFailure && virtual_cuda::failed_call() == names[n]);
    CHECK(cudaGetLastError() == cudaErrorLaunchFailure);
    OK(careful());
    CHECK(clean());
  }
  virtual_cuda::fail_call("cudaGetDevice", cudaErrorUnknown, 2);
  int device;
  OK(cudaGetDevice(&device));
  CHECK(cudaGetDevice(&device) == cudaErrorUnknown);
  OK(cudaGetDevice(&device));
}

TEST(freed_addresses_are_used_again_only_if_asked_for) {
  for (bool again : {false, true}) {
    virtual_cuda::reset({.reuse_addresses = again});
    const Buffer other(0, 1);
    void *first, *second, *larger;
    OK(cudaMalloc(&first, kBytes));
    OK(cudaMemsetAsync(first, 1, kBytes));
    OK(cudaDeviceSynchronize());
    OK(cudaFree(first));
    OK(cudaMalloc(&larger, 10 * 4096));
    CHECK(larger != first);
    OK(cudaMalloc(&second, kBytes + 4));
    CHECK((second == first) == again);
    std::vector<int> found(kElems);
    OK(cudaMemcpy(found.data(), second, kBytes, cudaMemcpyDeviceToHost));
    CHECK(found[0] != 0x01010101);
    CHECK(other.holds(1));
    OK(cudaFree(second));
    OK(cudaFree(larger));
    OK(cudaMemsetAsync(second, 1, 4));
    OK(cudaDeviceSynchronize());
    CHECK(reported("use after free"));
  }
}

TEST(work_that_hangs_holds_up_its_own_stream_only) {
  virtual_cuda::reset({.lies = {{.device = 0, .peer = 1, .hangs = true}}, .linear = true});
  enable_peers(2);
  static const Buffer* const a = new Buffer(0, 1);  // in use for ever
  static const Buffer* const b = new Buffer(1, 2);
  {
    Buffer c(0, 3);
    Stream hung(0), other(0);
    OK(launch(hung, {a->pointer, nullptr, b->pointer}));
    OK(launch(other, {a->pointer, nullptr, c.pointer}));
    OK(cudaStreamSynchronize(other));
    CHECK(c.holds(1));
    for (int times = 0; times < 10; ++times) CHECK(cudaStreamQuery(hung) == cudaErrorNotReady);
    CHECK(virtual_cuda::violations().empty());
    cudaSetDevice(0);
    OK(cudaDeviceDisablePeerAccess(1));
    CHECK(reported("peer access disabled under kernel(selftest::Add) on device 0"));
  }
  virtual_cuda::reset({});
  CHECK(reported("leak: memory not freed"));
}

TEST(foreign_memory_needs_access) {
  using virtual_cuda::Foreign;
  virtual_cuda::reset({.linear = true});
  enable_peers(2);
  Buffer mine(0, 1);
  Stream s(0);
  const auto refused = [&](void* memory) {
    cudaSetDevice(0);
    OK(launch(s, {mine.pointer, nullptr, static_cast<int*>(memory)}));
    const bool kernel = reported("no access to foreign memory: kernel(selftest::Add) on device 0 writes");
    OK(cudaMemcpyAsync(memory, mine.pointer, kBytes, cudaMemcpyDeviceToDevice, s));
    OK(cudaStreamSynchronize(s));
    const bool copy = reported("no access to foreign memory: copy from device 0 to device 1 writes");
    CHECK(kernel == copy);
    return kernel;
  };
  void* const pool = virtual_cuda::allocate_foreign(Foreign::pool, 1, kBytes);
  void* const shared = virtual_cuda::allocate_foreign(Foreign::shared, 1, kBytes);
  void* const closed = virtual_cuda::allocate_foreign(Foreign::closed, 1, kBytes);
  CHECK(refused(pool) && refused(closed) && !refused(shared));
  const cudaMemAccessDesc access{{cudaMemLocationTypeDevice, 0}, cudaMemAccessFlagsProtReadWrite};
  OK(cudaMemPoolSetAccess(reinterpret_cast<cudaMemPool_t>(2), &access, 1));
  CHECK(!refused(pool) && refused(closed));
  for (void* memory : {pool, shared, closed}) OK(cudaFree(memory));
}

TEST(a_pool_may_stay_closed) {
  virtual_cuda::reset({.pools_open = false});
  const cudaMemAccessDesc access{{cudaMemLocationTypeDevice, 0}, cudaMemAccessFlagsProtReadWrite};
  CHECK(cudaMemPoolSetAccess(reinterpret_cast<cudaMemPool_t>(2), &access, 1) == cudaErrorNotSupported);
}
