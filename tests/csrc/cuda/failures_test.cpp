// Every CUDA call of a call made to fail once, or to come after another thread's synchronization.
#include <functional>

#include "cases.h"
#include "cuda/peers.h"

namespace engines_test {
namespace {

// Calls of one key. The first is enqueued, the second recorded, the third replayed; the fourth is recorded for tensors
// that move, and the fifth updates its graph.
constexpr int kTensorsOfCall[] = {0, 0, 0, 1, 2};
constexpr int kCalls = std::size(kTensorsOfCall);

class Calls {
 public:
  explicit Calls(const Case& one)
      : one_(one),
        program_(copy_of(one.named.program)),
        machine_(one.named.program.ranks, one.setting),
        content_(one.content()) {
    for (int i = 0; i < 3; ++i) buffers_.push_back(std::make_unique<Buffers>(content_, machine_.placement));
  }

  void run(int call) const { run_events(program_, buffers(call).tables(), machine_.placement); }
  void run_before(int call) const {
    for (int earlier = 0; earlier < call; ++earlier) run(earlier);
    synchronize(machine_.devices);
  }
  const Buffers& buffers(int call) const { return *buffers_[kTensorsOfCall[call]]; }
  void expect_reduced(int call, const std::string& where) const {
    buffers(call).collect();
    synchronize(machine_.devices);
    buffers(call).expect_reduced(where);
    expect_clean(where);
  }
  std::string where(int call) const { return one_.name() + ", call " + std::to_string(call + 1); }

 private:
  const Case& one_;
  Schedule program_;
  Machine machine_;
  Content content_;
  std::vector<std::unique_ptr<Buffers>> buffers_;
};

// Destructors have nobody to tell: they put the caller's device and mode back and give up what they own.
// Where that shows, it does so in a later call.
bool is_in_a_destructor(const std::string& call) {
  static const std::set<std::string> calls = {
      "cudaSetDevice",    "cudaFree",         "cudaStreamDestroy",    "cudaThreadExchangeStreamCaptureMode",
      "cudaEventDestroy", "cudaGraphDestroy", "cudaGraphExecDestroy", "cudaFreeHost",
  };
  return calls.contains(call);
}

// Makes the n-th CUDA call of a call fail; returns whether it made as many. The call raises an error that names it, or
// it could not be recorded and ran without a graph.
bool fails_cleanly(const Case& one, int call, int64_t n, cudaError_t error) {
  const Calls calls(one);
  calls.run_before(call);
  calls.buffers(call).fill();
  synchronize(one.setting.devices);
  const int64_t before = virtual_cuda::calls_made();
  virtual_cuda::fail_call(n, error);
  std::string thrown;
  try {
    calls.run(call);
  } catch (const std::runtime_error& caught) {
    thrown = caught.what();
  }
  const bool failed = virtual_cuda::calls_made() - before >= n;
  virtual_cuda::forget_failures();
  const std::string where = calls.where(call) + ", " + (failed ? virtual_cuda::failed_call() : "nothing") + " failed";
  const bool may_go_on = !failed || call > 0 || is_in_a_destructor(virtual_cuda::failed_call());
  if (thrown.find(virtual_cuda::failed_call() + " failed: " + cudaGetErrorName(error)) == std::string::npos &&
      !(thrown.empty() && may_go_on))
    fail(where + ", and what was thrown is \"" + thrown + '"');
  if (is_in_a_destructor(virtual_cuda::failed_call())) cudaGetLastError();
  if (!thrown.empty()) calls.buffers(call).touch();
  expect_clean(where + ", when the error arrives");
  const DeviceGuard guard(0);
  if (thrown.empty()) calls.expect_reduced(call, where);
  synchronize(one.setting.devices);
  for (int times = 0; times < 2; ++times) {
    calls.buffers(call).fill();
    calls.run(call);
    calls.expect_reduced(call, "after " + where);
  }
  ++cases;
  return failed;
}

// Before the n-th CUDA call of a call, another thread waits for all devices; returns whether it made as many. Neither
// may break the other.
bool is_undisturbed(const Case& one, int call, int64_t n) {
  const Calls calls(one);
  calls.run_before(call);
  calls.buffers(call).fill();
  bool interrupted = false;
  const std::string where = calls.where(call) + ", a synchronization before its CUDA call " + std::to_string(n);
  virtual_cuda::interrupt_call(n, [&] {
    interrupted = true;
    for (int device = 0; device < one.setting.devices; ++device)
      if (cudaSetDevice(device) != cudaSuccess || cudaDeviceSynchronize() != cudaSuccess) fail(where + " failed");
  });
  calls.run(call);
  virtual_cuda::interrupt_call(0, nullptr);
  calls.expect_reduced(call, where);
  ++cases;
  return interrupted;
}

void for_each_call_of_a_call(int ranks, const std::function<bool(const Case& one, int call, int64_t n)>& try_out) {
  for_each_allreduce({ranks}, [&](const Named& named) {
    for (int call = 0; call < kCalls; ++call)
      for (int64_t n = 1; try_out({named, kSum, {100}, {0, 0}, {.devices = ranks, .slices = 2}}, call, n); ++n) {
      }
  });
}

// In each of these calls the peers are found out anew. The numbers of the two errors are below and above those that
// the search expects.
void failures_of_trials() {
  const Case one{program_of("sharded", 2), kSum, {100}, {0, 0}, {.devices = 2}};
  for (const cudaError_t error : {cudaErrorInvalidValue, cudaErrorUnknown}) {
    int64_t n = 0;
    do forget_peers();
    while (fails_cleanly(one, 0, ++n, error));
  }
}

}  // namespace

void failures(int ranks) {
  for_each_call_of_a_call(
      ranks, [](const Case& one, int call, int64_t n) { return fails_cleanly(one, call, n, cudaErrorUnknown); });
  failures_of_trials();
}

// Repeated calls are alike.
void failures_by_flags() {
  for (const Setting& setting :
       {Setting{.devices = 2, .by_flags = true}, Setting{.devices = 1, .lane_per_rank = true, .by_flags = true}}) {
    const Case one{program_of("ring", 2), kSum, {100}, {0, 0}, setting};
    for (int call : {0, 1})
      for (int64_t n = 1; fails_cleanly(one, call, n, cudaErrorUnknown); ++n) {
      }
  }
}

void interruptions(int ranks) { for_each_call_of_a_call(ranks, is_undisturbed); }

}  // namespace engines_test
