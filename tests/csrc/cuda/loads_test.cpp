// A kernel is loaded in one thread while another has made one of two launches that wait for each other.
#include <thread>

#include "cases.h"
#include "cuda/peers.h"

namespace engines_test {
namespace {

class Call {
 public:
  Call(Arithmetic arithmetic, const Setting& setting)
      : named_(program_of("leader", 2)),
        program_(copy_of(named_.program)),
        machine_(2, setting),
        content_(named_, arithmetic, Data::exact, {100}, {0, 0}),
        buffers_(content_, machine_.placement) {
    prove_peers(machine_.placement.device_of_rank, machine_.placement.current);
  }
  void fill() const { buffers_.fill(); }
  void run() const {
    if (machine_.devices == 1)
      run_tiles_cuda(program_, buffers_.tables(), 0, machine_.placement.current[0]);
    else
      run_events(program_, buffers_.tables(), machine_.placement);
  }
  void expect_reduced(const std::string& where) const {
    buffers_.collect();
    synchronize(machine_.devices);
    buffers_.expect_reduced(where);
    expect_clean(where);
    ++cases;
  }

 private:
  const Named& named_;
  Schedule program_;
  Machine machine_;
  Content content_;
  Buffers buffers_;
};

int64_t loads() {
  const auto calls = virtual_cuda::calls();
  return std::count(calls.begin(), calls.end(), "cudaGetFuncBySymbol");
}

// How many CUDA calls this one makes up to its first launch.
int64_t calls_to_a_launch(const Call& call) {
  const int64_t before = virtual_cuda::calls_made();
  call.run();
  const auto calls = virtual_cuda::calls();
  return std::find(calls.begin() + before, calls.end(), "cuLaunchKernel") - (calls.begin() + before) + 1;
}

}  // namespace

void a_kernel_loaded_between_launches() {
  const Call by_flags(kSum, {.devices = 2, .by_flags = true}), beside({DType::f64, Op::max}, {.devices = 1});
  by_flags.run();
  by_flags.fill(), beside.fill();
  const int64_t launch = calls_to_a_launch(by_flags);
  by_flags.fill();
  std::thread other;
  virtual_cuda::interrupt_call(launch + 1, [&] {
    const int64_t before = loads();
    other = std::thread([&] { beside.run(); });
    while (loads() == before) std::this_thread::yield();
  });
  by_flags.run();
  if (!other.joinable()) fail("control: nothing came between the launches");
  other.join();
  by_flags.expect_reduced("beside a load");
  beside.expect_reduced("with a kernel loaded beside others");
}

}  // namespace engines_test
