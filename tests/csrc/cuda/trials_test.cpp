// Pairs of devices whose copies never end, and what NVML says of pairs.
#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>

#include "cases.h"
#include "cuda/peers.h"
#include "cuda/trial.h"

namespace engines_test {
namespace {

double now_s = 0;

// Each look at it costs 10 ms.
double counted_s() {
  if ((now_s += 0.01) > 20) fail("the host still waits for a copy that hangs");
  return now_s;
}

double leaping_s() { return now_s += 3; }

// Devices cannot be waited for any more, but streams can.
void expect_reduced(const Case& one, const Machine& machine, const Buffers& buffers) {
  const Schedule program = copy_of(one.named.program);
  for (int times = 0; times < 3; ++times) {
    buffers.fill();
    run_events(program, buffers.tables(), machine.placement);
    buffers.collect();
  }
  for (int rank = 0; rank < program.ranks; ++rank) {
    const DeviceGuard guard(machine.placement.device_of_rank[rank]);
    cuda_check(cudaStreamSynchronize(machine.placement.current[rank]), "cudaStreamSynchronize");
  }
  buffers.expect_reduced("beside a copy that hangs");
  expect_clean("beside a copy that hangs");
  ++cases;
}

int64_t lines_of(const std::string& path, const std::string& words) {
  std::ifstream file(path);
  int64_t count = 0;
  for (std::string line; std::getline(file, line);) count += line.find(words) != std::string::npos;
  return count;
}

}  // namespace

// Of the pairs that 0 or 1 belongs to, only the first is tried out: it takes two seconds. The next process believes
// what it found, and tries others.
void copies_that_hang(const std::string& path, int tried_later) {
  std::remove(path.c_str());
  tell_time_by(counted_s);
  keep_proofs_in(path);
  const Case one{program_of("sharded", 4), kSum, {1000}, {0, 0}, {.devices = 4}};
  const Machine machine(4, one.setting);
  const Content content = one.content();
  const Buffers buffers(content, machine.placement);
  expect_reduced(one, machine, buffers);
  if (now_s < 2 || now_s > 3) fail("waited for " + std::to_string(now_s) + " s");
  if (lines_of(path, "") != 3) fail("not three pairs were tried out, but " + std::to_string(lines_of(path, "")));
  if (lines_of(path, "did not end within 2 s.") != 1) fail("no pair was found to hang");
  forget_peers();
  expect_reduced(one, machine, buffers);
  if (lines_of(path, "") != 3 + tried_later) fail("tried out later: " + std::to_string(lines_of(path, "") - 3));
}

// Of the work that a trial waits for, the first four are within one device each: they may wait for other work there.
void devices_that_are_busy() {
  tell_time_by(leaping_s);
  for (int64_t waits = 1; waits <= 5; ++waits) {
    forget_peers();
    virtual_cuda::fail_call("cudaStreamQuery", cudaErrorNotReady, waits);
    if (can_reach(0, 1) != (waits < 5)) fail("busy at work " + std::to_string(waits) + ": wrong about the pair");
    ++cases;
  }
}

// 0 and 1, and 1 and 2, by NVML. It does not know 4; there and without NVML, what passes atomics has NVLink.
void nvlinks(const std::string& nvml) {
  if (!nvml.empty() && !dlopen(nvml.c_str(), RTLD_NOW)) fail(dlerror());
  for (int device = 0; device < 5; ++device)
    for (int other = 0; other < 5; ++other) {
      const bool is_known = !nvml.empty() && device < 4 && other < 4;
      const bool wanted = !is_known || device == other || (std::abs(device - other) == 1 && device + other < 4);
      for (int times = 0; times < 2; ++times)
        if (has_nvlink(device, other) != wanted)
          fail(std::to_string(device) + " and " + std::to_string(other) + ": wrong about NVLink");
      ++cases;
    }
}

}  // namespace engines_test
