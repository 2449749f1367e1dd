// A small test frame, and the kernel and the objects that the self-tests use.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "cuda_runtime.h"

namespace selftest {

using virtual_cuda::Config;

struct Test {
  const char* name;
  void (*run)();
};
std::vector<Test>& tests();
struct Register {
  Register(const char* name, void (*run)()) { tests().push_back({name, run}); }
};
#define TEST(name)                                              \
  static void name();                                           \
  static const selftest::Register register_##name(#name, name); \
  static void name()

void check(bool condition, const char* text, const char* file, int line);
#define CHECK(condition) selftest::check(condition, #condition, __FILE__, __LINE__)
#define OK(call) CHECK((call) == cudaSuccess)

// Some violation says `words`; then forgets them all.
bool reported(const std::string& words);
bool clean();  // nothing leaked, and no violation at all

constexpr int kElems = 64;
constexpr size_t kBytes = kElems * sizeof(int);

// dst <- a + b, or a copy of a without b; `elems` are declared, `overrun` more are written.
struct Add {
  const int* a;
  const int* b;
  int* dst;
  int elems = kElems;
  int overrun = 0;
};
void add(Add args);
void declare_accesses(const Add& args, int device, virtual_cuda::Accesses& out);

cudaError_t launch(cudaStream_t stream, Add args);

// Makes the device current; its first call sets the device of what is created next.
struct Buffer {
  explicit Buffer(int device, int value = 0);
  ~Buffer() { cudaFree(pointer); }
  Buffer(const Buffer&) = delete;
  std::vector<int> read() const;  // waits for the copy, and for nothing else
  bool holds(int value) const { return read() == std::vector<int>(kElems, value); }
  int* pointer = nullptr;
  int device;
};

struct Stream {
  explicit Stream(int device, unsigned flags = cudaStreamNonBlocking) {
    cudaSetDevice(device);
    cudaStreamCreateWithFlags(&handle, flags);
  }
  ~Stream() { cudaStreamDestroy(handle); }
  Stream(const Stream&) = delete;
  operator cudaStream_t() const { return handle; }
  cudaStream_t handle = nullptr;
};

struct Event {
  explicit Event(int device, unsigned flags = cudaEventDisableTiming) {
    cudaSetDevice(device);
    cudaEventCreateWithFlags(&handle, flags);
  }
  ~Event() { cudaEventDestroy(handle); }
  Event(const Event&) = delete;
  operator cudaEvent_t() const { return handle; }
  cudaEvent_t handle = nullptr;
};

void enable_peers(int devices);

// Runs `body` on fresh runtimes: threads with some seeds, and one thread in many orders.
void in_many_orders(Config config, const std::function<void()>& body, int threaded = 5);

// For programs that do race: ThreadSanitizer would say so too, and fail the self-tests.
#ifdef __SANITIZE_THREAD__
constexpr bool kRacesOnThreads = false;
#else
constexpr bool kRacesOnThreads = true;
#endif
const Config kRacing{.linear = !kRacesOnThreads};

}  // namespace selftest
