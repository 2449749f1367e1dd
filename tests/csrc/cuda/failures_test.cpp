// Every CUDA call of a call made to fail once: a clean error, and a following call that works.
#include "cases.h"

namespace engines_test {
namespace {

// Makes the n-th CUDA call of a call fail; returns whether it made as many.
bool fails_cleanly(const Case& one, int calls_before, int64_t n) {
  const Schedule program = copy_of(one.named.program);
  const Machine machine(3, one.setting);
  const Content content = one.content();
  const Buffers buffers(content, machine.placement);
  for (int i = 0; i < calls_before; ++i) run_events(program, buffers.tables(), machine.placement);
  synchronize(3);
  const int64_t before = virtual_cuda::calls_made();
  virtual_cuda::fail_call(n, cudaErrorUnknown);
  std::string thrown;
  try {
    run_events(program, buffers.tables(), machine.placement);
  } catch (const std::runtime_error& error) {
    thrown = error.what();
  }
  const bool failed = virtual_cuda::calls_made() - before >= n;
  virtual_cuda::forget_failures();
  const std::string where = one.name() + ", call " + std::to_string(calls_before + 1) + ", " +
                            (failed ? virtual_cuda::failed_call() : "nothing") + " failed";
  // Destructors have nobody to tell: they put the caller's device and mode back and give up what they own.
  // Where that shows, it does so in a later call.
  static const std::set<std::string> in_destructors = {
      "cudaSetDevice",    "cudaFree",         "cudaStreamDestroy",    "cudaThreadExchangeStreamCaptureMode",
      "cudaEventDestroy", "cudaGraphDestroy", "cudaGraphExecDestroy",
  };
  if (failed && thrown.find("cudaErrorUnknown") == std::string::npos &&
      !in_destructors.contains(virtual_cuda::failed_call()))
    fail(where + ", and what was thrown is \"" + thrown + '"');
  const DeviceGuard guard(0);
  synchronize(3);
  buffers.fill();
  run_events(program, buffers.tables(), machine.placement);
  buffers.collect();
  synchronize(3);
  buffers.expect_reduced(where);
  expect_clean(where);
  ++cases;
  return failed;
}

}  // namespace

// The first call runs, the second is captured and launched, the third replayed.
void failures() {
  for_each_allreduce({3}, [](const Named& named) {
    for (int calls_before = 0; calls_before < 3; ++calls_before)
      for (int64_t n = 1; fails_cleanly({named, kSum, {100}, {0, 0}, {.devices = 3, .slices = 2}}, calls_before, n);
           ++n) {
      }
  });
}

}  // namespace engines_test
