// Calls in threads that have not called CUDA before: they have no context, and functions of the driver fail without.
#include <exception>
#include <thread>

#include "cases.h"

namespace engines_test {
namespace {

template <class Call>
void in_a_new_thread(const std::string& where, const Call& call) {
  std::string error;
  std::thread([&] {
    try {
      call();
    } catch (const std::exception& thrown) {
      error = thrown.what();
    }
  }).join();
  if (!error.empty()) fail(where + ": " + error);
}

// The first call is made here, and loads the kernels, which makes a context too.
void expect_right(const std::string& where, const Setting& setting) {
  const Case one{program_of("leader", 2), kSum, {100}, {0, 0}, setting};
  const Schedule program = copy_of(one.named.program);
  const Machine machine(2, setting);
  const Content content = one.content();
  const Buffers buffers(content, machine.placement);
  const auto call = [&] {
    if (setting.devices == 1)
      run_tiles_cuda(program, buffers.tables(), 0, machine.placement.current[0]);
    else
      run_events(program, buffers.tables(), machine.placement);
  };
  call();
  for (int times = 0; times < 3; ++times) {
    buffers.fill();
    in_a_new_thread(where, call);
    buffers.collect();
    synchronize(setting.devices);
    buffers.expect_reduced(where);
    expect_clean(where);
    ++cases;
  }
}

}  // namespace

void calls_in_new_threads() {
  expect_right("one GPU in new threads", {.devices = 1});
  expect_right("two GPUs in new threads", {.devices = 2});
}

}  // namespace engines_test
