// Correct programs: right results in every order, and nothing reported.
#include "selftest.h"

#include <cstdio>
#include <cstring>

namespace selftest {

std::vector<Test>& tests() {
  static std::vector<Test> all;
  return all;
}

static int failures = 0;

void check(bool condition, const char* text, const char* file, int line) {
  if (condition) return;
  ++failures;
  std::printf("%s:%d: %s\n", file, line, text);
  for (const auto& violation : virtual_cuda::violations()) std::printf("  violation: %s\n", violation.c_str());
}

bool reported(const std::string& words) {
  for (const auto& violation : virtual_cuda::take_violations())
    if (violation.find(words) != std::string::npos) return true;
  return false;
}

bool clean() {
  virtual_cuda::check_clean();
  return virtual_cuda::violations().empty();
}

void add(Add args) {
  const int stride = static_cast<int>(gridDim.x * blockDim.x);
  const int first = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  for (int i = first; i < args.elems + args.overrun; i += stride)
    args.dst[i] = args.a[i] + (args.b == nullptr ? 0 : args.b[i]);
}

void declare_accesses(const Add& args, int, virtual_cuda::Accesses& out) {
  const size_t bytes = static_cast<size_t>(args.elems) * sizeof(int);
  out.reads(args.a, bytes);
  if (args.b != nullptr) out.reads(args.b, bytes);
  out.writes(args.dst, bytes);
}

cudaError_t launch(cudaStream_t stream, Add args) {
  const cudaLaunchConfig_t config{4, 128, 0, stream, nullptr, 0};
  return cudaLaunchKernelEx(&config, add, args);
}

Buffer::Buffer(int device, int value) : device(device) {
  const std::vector<int> values(kElems, value);
  cudaSetDevice(device);
  cudaMalloc(&pointer, kBytes);
  cudaMemcpy(pointer, values.data(), kBytes, cudaMemcpyHostToDevice);
  cudaDeviceSynchronize();
}

std::vector<int> Buffer::read() const {
  std::vector<int> values(kElems);
  cudaSetDevice(device);
  cudaMemcpy(values.data(), pointer, kBytes, cudaMemcpyDeviceToHost);
  return values;
}

void enable_peers(int devices) {
  for (int d = 0; d < devices; ++d)
    for (int e = 0; e < devices; ++e) {
      cudaSetDevice(d);
      if (d != e) cudaDeviceEnablePeerAccess(e, 0);
    }
}

void in_many_orders(Config config, const std::function<void()>& body, int threaded) {
  for (int order = 0; order < threaded + 200; ++order) {
    config.seed = static_cast<uint64_t>(order);
    config.linear = order >= threaded;
    config.verify_writes = config.linear;
    virtual_cuda::reset(config);
    body();
  }
}

}  // namespace selftest

using namespace selftest;

// Both devices reduce and write half of both buffers; each waits for the other's input, then joins.
static void two_device_reduction() {
  Buffer x(0, 3), y(1, 4);
  Stream s0(0), s1(1);
  Event ready0(0), ready1(1), done0(0), done1(1);
  constexpr int half = kElems / 2;
  OK(cudaEventRecord(ready0, s0));
  OK(cudaEventRecord(ready1, s1));
  OK(cudaStreamWaitEvent(s0, ready1));
  OK(cudaStreamWaitEvent(s1, ready0));
  for (int d = 0; d < 2; ++d) {
    int* mine = (d == 0 ? x.pointer : y.pointer) + d * half;
    int* other = (d == 0 ? y.pointer : x.pointer) + d * half;
    cudaSetDevice(d);
    OK(launch(d == 0 ? s0 : s1, {mine, other, mine, half}));
    OK(launch(d == 0 ? s0 : s1, {mine, nullptr, other, half}));
  }
  OK(cudaEventRecord(done0, s0));
  OK(cudaEventRecord(done1, s1));
  OK(cudaStreamWaitEvent(s0, done1));
  OK(cudaEventSynchronize(done1));
  OK(cudaStreamSynchronize(s0));
  CHECK(x.holds(7) && y.holds(7));
}

TEST(reduction_on_two_devices) {
  in_many_orders({}, [] {
    enable_peers(2);
    two_device_reduction();
    CHECK(clean());
  });
}

// a <- a + a on one stream, b <- b + b on another, a <- a + b after both.
TEST(captured_fork_and_join_replayed) {
  in_many_orders({}, [] {
    {
      enable_peers(2);
      Buffer a(0, 1), b(1, 2);
      Stream s0(0), s1(1);
      Event fork(0), join(1);
      cudaGraph_t graph;
      cudaGraphExec_t exec;
      OK(cudaStreamBeginCapture(s0, cudaStreamCaptureModeGlobal));
      OK(cudaEventRecord(fork, s0));
      OK(cudaStreamWaitEvent(s1, fork));
      OK(launch(s1, {b.pointer, b.pointer, b.pointer}));
      OK(cudaEventRecord(join, s1));
      cudaSetDevice(0);
      OK(launch(s0, {a.pointer, a.pointer, a.pointer}));
      OK(cudaStreamWaitEvent(s0, join));
      OK(launch(s0, {a.pointer, b.pointer, a.pointer}));
      OK(cudaStreamEndCapture(s0, &graph));
      OK(cudaGraphInstantiate(&exec, graph));
      CHECK(a.holds(1) && b.holds(2));
      OK(cudaGraphLaunch(exec, s0));
      OK(cudaGraphLaunch(exec, s1));
      OK(cudaStreamSynchronize(s1));
      CHECK(a.holds(20) && b.holds(8));
      OK(cudaGraphExecDestroy(exec));
      OK(cudaGraphDestroy(graph));
    }
    CHECK(clean());
  });
}

static void peer_copies() {
  {
    Buffer a(0, 5), b(1);
    Stream s(0);
    int* pinned;
    OK(cudaMallocHost(&pinned, kBytes));
    OK(cudaMemcpyPeerAsync(b.pointer, 1, a.pointer, 0, kBytes, s));
    OK(cudaMemcpyAsync(pinned, b.pointer, kBytes, cudaMemcpyDeviceToHost, s));
    OK(cudaMemsetAsync(a.pointer, 0, kBytes, s));
    OK(cudaMemcpyAsync(a.pointer, pinned, kBytes, cudaMemcpyDefault, s));
    OK(cudaStreamSynchronize(s));
    virtual_cuda::host_reads(pinned, kBytes);
    CHECK(a.holds(5) && b.holds(5) && pinned[kElems - 1] == 5);
    OK(cudaFreeHost(pinned));
  }
  CHECK(clean());
}

TEST(copies_between_devices_without_peer_access) {
  in_many_orders({.peers = {{false, false}, {false, false}}}, peer_copies);
}

// dst[i] <- 10 threads per block + the thread.
struct Who {
  int* dst;
};

static void who(Who args) {
  args.dst[blockIdx.x * blockDim.x + threadIdx.x] = static_cast<int>(10 * blockDim.x + threadIdx.x);
}

static void declare_accesses(const Who& args, int, virtual_cuda::Accesses& out) { out.writes(args.dst, kBytes); }

TEST(threads_of_a_block) {
  virtual_cuda::reset({.block_threads = 3});
  Buffer all(0), fewer(0);
  Stream s(0);
  const cudaLaunchConfig_t of_128{2, 128, 0, s, nullptr, 0}, of_2{2, 2, 0, s, nullptr, 0};
  OK(cudaLaunchKernelEx(&of_128, who, Who{all.pointer}));
  OK(cudaLaunchKernelEx(&of_2, who, Who{fewer.pointer}));
  OK(cudaStreamSynchronize(s));
  std::vector<int> of_three = all.read(), of_two = fewer.read();
  of_three.resize(7), of_two.resize(5);
  CHECK((of_three == std::vector<int>{30, 31, 32, 30, 31, 32, 0}));
  CHECK((of_two == std::vector<int>{20, 21, 20, 21, 0}));
}

// One runtime for all orders: objects are kept, and what is done is forgotten.
TEST(ten_thousand_orders) {
  virtual_cuda::reset({.linear = true});
  enable_peers(2);
  for (uint64_t seed = 0; seed < 10'000; ++seed) {
    virtual_cuda::reseed(seed);
    two_device_reduction();
  }
  CHECK(clean());
}

int main(int argc, char** argv) {
  for (const Test& test : tests()) {
    const bool control = std::strncmp(test.name, "control_", 8) == 0;
    if (argc > 1 ? std::strcmp(argv[1], test.name) != 0 : control) continue;
    virtual_cuda::reset({});
    test.run();
    if (!control) check(clean(), "clean at the end", test.name, 0);
    std::printf("%s\n", test.name);
  }
  return failures > 0 ? 1 : 0;
}
