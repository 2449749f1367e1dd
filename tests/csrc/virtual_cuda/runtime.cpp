// The one runtime of the process, the errors it returns, and what tests control.
#include "runtime.h"

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <set>

namespace virtual_cuda {
namespace {

std::mutex the_mutex;
Runtime* the_runtime = nullptr;
std::atomic<int64_t> generations{0};
std::atomic<bool> is_unloading{false};

// As CUDA's: calls made by destructors that run later than this one find the driver gone.
struct AtExit {
  ~AtExit() {
    std::lock_guard lock(the_mutex);
    is_unloading.store(true, std::memory_order_release);
    delete the_runtime;
    the_runtime = nullptr;
    for (const std::string& text : all_violations()) std::fprintf(stderr, "violation: %s\n", text.c_str());
    if (!all_violations().empty()) std::_Exit(97);
  }
} at_exit;

void start(const Config& config) {
  delete the_runtime;
  the_runtime = nullptr;
  ++generations;
  the_runtime = new Runtime(config);
}

void host_access(const void* pointer, size_t bytes, bool writes) {
  std::lock_guard lock(the_mutex);
  const auto begin = reinterpret_cast<uintptr_t>(pointer);
  runtime().checker.host_access({begin, begin + bytes, writes}, "the host");
}

}  // namespace

std::mutex& runtime_mutex() { return the_mutex; }
bool unloading() { return is_unloading.load(std::memory_order_acquire); }

Runtime& runtime() {
  if (the_runtime == nullptr) start(Config{});
  return *the_runtime;
}

HostThread& host_thread() {
  thread_local HostThread state;
  const int64_t now = generations.load(std::memory_order_relaxed);
  if (state.generation != now) state = HostThread{.generation = now};
  return state;
}

Runtime::Runtime(const Config& config)
    : config(config),
      memory(config.devices, config.memory_bytes, config.reuse_addresses),
      checker(memory),
      rng(config.seed) {
  for (int device = 0; device < config.devices; ++device)
    legacy.push_back({new_queue(device), device, cudaStreamDefault, true, nullptr, {}});
}

Runtime::~Runtime() {
  let_hung_work_finish();
  wait_all();
  queues.clear();
}

void Runtime::report_leaks() {
  auto leaks = [this](const char* what, size_t count) {
    if (count > 0) report("leak: " + std::to_string(count) + " " + what);
  };
  leaks("streams", streams.all().size());
  leaks("events", events.all().size());
  leaks("graphs", graphs.all().size() - captures.size());
  leaks("executable graphs", execs.all().size());
  leaks("user objects", user_objects.all().size());
  leaks("captures begun and not ended", captures.size());
  for (auto& [begin, a] : memory.all())
    if (!a.freed) report("leak: memory not freed: " + memory.describe(a.begin, a.end));
}

cudaError_t count_call(Runtime& rt, const char* name) {
  rt.calls.push_back(name);
  if (rt.config.devices == 0) return cudaErrorNoDevice;
  for (auto failure = rt.failures.begin(); failure != rt.failures.end(); ++failure) {
    if (!failure->name.empty() && failure->name != name) continue;
    if (--failure->in > 0) continue;
    const cudaError_t error = failure->error;
    rt.failures.erase(failure);
    rt.failed_call = name;
    return error;
  }
  return cudaSuccess;
}

void made(const char* call) {
  static const std::set<std::string> only_ask{
      "cudaDeviceCanAccessPeer", "cudaDeviceGetAttribute",   "cudaDeviceGetP2PAttribute",
      "cudaDeviceGetPCIBusId",   "cudaDriverGetVersion",     "cudaGetDevice",
      "cudaGetDeviceCount",      "cudaGetDeviceProperties",  "cudaGetDriverEntryPointByVersion",
      "cudaRuntimeGetVersion",   "cudaStreamGetCaptureInfo", "cudaThreadExchangeStreamCaptureMode"};
  const std::string name = call;
  if (!name.starts_with("cuda") || only_ask.contains(name)) return;
  host_thread().has_context = true;
  runtime().contexts.insert(host_thread().device);
}

void let_interrupt(std::unique_lock<std::mutex>& lock) {
  Runtime& rt = runtime();
  if (rt.interruption_in == 0 || --rt.interruption_in > 0) return;
  const std::function<void()> interruption = std::move(rt.interruption);
  lock.unlock();
  std::thread(interruption).join();
  lock.lock();
}

void interrupt_call(int64_t n, std::function<void()> what) {
  std::lock_guard lock(the_mutex);
  runtime().interruption_in = n;
  runtime().interruption = std::move(what);
}

void reset(const Config& config) {
  std::lock_guard lock(the_mutex);
  if (the_runtime != nullptr) {
    the_runtime->let_hung_work_finish();
    the_runtime->wait_all();
    the_runtime->report_leaks();
  }
  start(config);
}

void reseed(uint64_t seed) {
  std::lock_guard lock(the_mutex);
  runtime().rng = Rng(seed);
}

std::vector<std::string> violations() {
  std::lock_guard lock(the_mutex);
  return all_violations();
}

std::vector<std::string> take_violations() {
  std::lock_guard lock(the_mutex);
  return std::exchange(all_violations(), {});
}

void check_clean() {
  std::lock_guard lock(the_mutex);
  runtime().wait_all();
  runtime().report_leaks();
}

void fail_call(int64_t n, cudaError_t error) { fail_call("", error, n); }

void fail_call(const std::string& name, cudaError_t error, int64_t n) {
  std::lock_guard lock(the_mutex);
  runtime().failures.push_back({name, n, error});
}

void forget_failures() {
  std::lock_guard lock(the_mutex);
  runtime().failures.clear();
}

std::vector<std::string> calls() {
  std::lock_guard lock(the_mutex);
  return {runtime().calls.begin(), runtime().calls.end()};
}

void set_driver_version(int version) {
  std::lock_guard lock(the_mutex);
  runtime().driver_version = version;
}

int64_t calls_made() {
  std::lock_guard lock(the_mutex);
  return static_cast<int64_t>(runtime().calls.size());
}

std::string failed_call() {
  std::lock_guard lock(the_mutex);
  return runtime().failed_call;
}

void* allocate_foreign(Foreign kind, int device, size_t bytes) {
  std::lock_guard lock(the_mutex);
  void* pointer = runtime().memory.allocate(device, bytes);
  if (pointer != nullptr) runtime().memory.find(reinterpret_cast<uintptr_t>(pointer))->foreign = kind;
  return pointer;
}

void host_reads(const void* pointer, size_t bytes) { host_access(pointer, bytes, false); }

void host_writes(const void* pointer, size_t bytes) { host_access(pointer, bytes, true); }

size_t allocated_bytes(int device) {
  std::lock_guard lock(the_mutex);
  return runtime().memory.allocated_bytes(device);
}

std::set<int> contexts() {
  std::lock_guard lock(the_mutex);
  return runtime().contexts;
}

int64_t graphs_launched() {
  std::lock_guard lock(the_mutex);
  return runtime().graphs_launched;
}

int64_t work_queued() {
  std::lock_guard lock(the_mutex);
  return runtime().work_queued;
}

Traffic take_traffic() {
  std::lock_guard lock(the_mutex);
  return std::exchange(runtime().traffic, {});
}

}  // namespace virtual_cuda

using virtual_cuda::host_thread;

const char* cudaGetErrorName(cudaError_t error) {
  switch (error) {
#define VC_ERROR(name, value, text) \
  case name: return #name;
#include "errors.def"
#undef VC_ERROR
  }
  return "unrecognized error code";
}

const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
#define VC_ERROR(name, value, text) \
  case name: return text;
#include "errors.def"
#undef VC_ERROR
  }
  return "unrecognized error code";
}

cudaError_t cudaGetLastError() { return std::exchange(host_thread().last_error, cudaSuccess); }
cudaError_t cudaPeekAtLastError() { return host_thread().last_error; }
