// The CUDA engines on the virtual runtime. engines_test MODE [SEEDS] prints "N cases right".
#include "engines_test.h"

using namespace engines_test;
using virtual_cuda::Config;

namespace {

int cases = 0;

struct Case {
  const char* program;
  int ranks;
  int devices;
  std::vector<int64_t> lengths;
  int offset = 0;
  bool lane_per_rank = false;
  int slices = 0;
  std::string name() const {
    return std::string(program) + ", " + std::to_string(ranks) + " ranks on " + std::to_string(devices) +
           " devices, " + std::to_string(lengths[0]) + " elements, offset " + std::to_string(offset) +
           (lane_per_rank ? ", a lane a rank, " : ", ") + std::to_string(slices) + " slices";
  }
};

// Three calls: the first runs, the second is captured and launched, the third replayed.
void run_case(const Case& one, uint64_t seed) {
  const Program program = program_of(one.program, one.ranks);
  const Machine machine(one.ranks, one.devices, one.lane_per_rank, one.slices);
  Buffers buffers(program, machine.placement.device_of_rank, one.lengths, one.offset, seed);
  for (int times = 1; times <= 3; ++times) {
    buffers.fill(machine.placement);
    run_events(program, buffers.tables(), machine.placement);
    buffers.collect(machine.placement);
  }
  synchronize(one.devices);
  buffers.expect_reduced(one.name());
  expect_clean(one.name());
  ++cases;
}

std::vector<Case> some_cases() {
  std::vector<Case> result;
  for (const char* program : {"leader", "sharded", "ring", "pairs", "host"})
    for (int ranks : {2, 3, 4, 8}) {
      result.push_back({program, ranks, ranks, {257, 3, 64}, 0, false, 0});
      result.push_back({program, ranks, 2, {1000}, 1, false, 3});
      result.push_back({program, ranks, 1, {333}, 2, true, 2});
    }
  return result;
}

void all_orders(int seeds) {
  for (const Case& one : some_cases())
    for (int seed = 0; seed < seeds; ++seed) {
      virtual_cuda::reseed(seed + 1);
      run_case(one, seed);
    }
}

void one_gpu() {
  for (const char* name : {"leader", "sharded", "ring", "pairs", "host"})
    for (int ranks : {1, 2, 3, 8, 9, 20})
      for (int64_t length : {1, 5, 4099, 20000})
        for (int offset : {0, 1, 3}) {
          const Program program = program_of(name, ranks);
          const Machine machine(ranks, 1);
          Buffers buffers(program, machine.placement.device_of_rank, {length, 7}, offset, length);
          buffers.fill(machine.placement);
          run_tiles_cuda(program, buffers.tables(), 0, machine.placement.current[0]);
          buffers.collect(machine.placement);
          synchronize(1);
          const std::string where = std::string("tiles, ") + name + ", " + std::to_string(ranks) + " ranks";
          buffers.expect_reduced(where);
          expect_clean(where);
          ++cases;
        }
}

// More rows than one launch holds.
void many_tensors() {
  for (int ranks : {2, 8, 40}) {
    const Program program = program_of("sharded", ranks);
    const Machine machine(ranks, 1);
    Buffers buffers(program, machine.placement.device_of_rank, std::vector<int64_t>(ranks == 40 ? 9 : 150, 61), 0, 5);
    buffers.fill(machine.placement);
    run_tiles_cuda(program, buffers.tables(), 0, machine.placement.current[0]);
    buffers.collect(machine.placement);
    synchronize(1);
    buffers.expect_reduced("many tensors");
    expect_clean("many tensors");
    ++cases;
  }
}

// Pairs without peer access, and pairs whose access loses data, go through the host; what does not
// fit one piece goes in several.
void through_the_host(bool in_pieces) {
  for (const char* program : {"leader", "sharded", "ring", "pairs", "host"})
    for (int ranks : {2, 4, 6}) {
      run_case({program, ranks, std::min(ranks, 4), {2000, 5}, 1, false, 2}, 7);
      if (in_pieces) run_case({program, ranks, std::min(ranks, 4), {2 * (1 << 20) + 77}, 0, false, 1}, 8);
    }
}

// A graph keeps the scratch memory that it was captured with, also when a larger call needed more.
void replay_after_a_larger_call() {
  const Program small = program_of("leader", 2);
  const Machine machine(2, 2);
  Buffers buffers(small, machine.placement.device_of_rank, {100}, 0, 5);
  const auto call = [&] {
    buffers.fill(machine.placement);
    run_events(small, buffers.tables(), machine.placement);
    buffers.collect(machine.placement);
    synchronize(2);
  };
  for (int times = 0; times < 3; ++times) call();
  run_case({"leader", 4, 4, {100}}, 6);
  call();
  buffers.expect_reduced("replayed after a larger call");
  expect_clean("replayed after a larger call");
  ++cases;
}

// The user captures the call, with what comes before and behind it, and replays it.
void user_capture() {
  for (const char* name : {"leader", "sharded", "ring", "pairs", "host"})
    for (int devices : {1, 3}) {
      const Program program = program_of(name, 3);
      Machine machine(3, devices, devices == 1, 2);
      Buffers buffers(program, machine.placement.device_of_rank, {500}, 0, 11);
      run_events(program, buffers.tables(), machine.placement);  // proves the peers, makes the lanes
      synchronize(devices);
      buffers.fill(machine.placement);
      synchronize(devices);
      const cudaStream_t stream = machine.placement.current[0];
      cudaGraph_t graph;
      cuda_check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
      run_events(program, buffers.tables(), machine.placement);
      cuda_check(cudaStreamEndCapture(stream, &graph), "cudaStreamEndCapture");
      const Graph owned(graph);
      cudaGraphExec_t exec;
      cuda_check(cudaGraphInstantiate(&exec, graph, 0), "cudaGraphInstantiate");
      const GraphExec owned_exec(exec);
      for (int times = 0; times < 2; ++times) cuda_check(cudaGraphLaunch(exec, stream), "cudaGraphLaunch");
      synchronize(devices);
      buffers.collect(machine.placement);
      synchronize(devices);
      buffers.expect_reduced(std::string("captured, ") + name, 2);
      expect_clean(std::string("captured, ") + name);
      ++cases;
    }
}

// Makes the n-th CUDA call of a call fail; returns whether it made as many.
bool fails_cleanly(const std::string& name, int calls_before, int64_t n) {
  const Program program = program_of(name, 3);  // a new one: nothing is cached for it
  const Machine machine(3, 3, false, 2);
  Buffers buffers(program, machine.placement.device_of_rank, {100}, 0, 3);
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
  const std::string where = name + ", call " + std::to_string(calls_before + 1) + ", " +
                            (failed ? virtual_cuda::failed_call() : "nothing") + " failed";
  // Destructors have nobody to tell: they put the caller's device back and give up what they own.
  // Where that shows, it does so in a later call.
  static const std::set<std::string> in_destructors = {"cudaSetDevice", "cudaFree", "cudaStreamDestroy",
                                                       "cudaEventDestroy", "cudaGraphDestroy", "cudaGraphExecDestroy"};
  if (failed && thrown.find("cudaErrorUnknown") == std::string::npos &&
      !in_destructors.contains(virtual_cuda::failed_call()))
    fail(where + ", and what was thrown is \"" + thrown + '"');
  const DeviceGuard guard(0);
  synchronize(3);
  buffers.fill(machine.placement);
  run_events(program, buffers.tables(), machine.placement);
  buffers.collect(machine.placement);
  synchronize(3);
  buffers.expect_reduced(where);
  expect_clean(where);
  ++cases;
  return failed;
}

// The first call runs, the second is captured and launched, the third replayed.
void failures() {
  for (const char* name : {"leader", "sharded", "ring", "pairs", "host"})
    for (int calls_before = 0; calls_before < 3; ++calls_before)
      for (int64_t n = 1; fails_cleanly(name, calls_before, n); ++n) {
      }
}

Config machine_for(const std::string& mode) {
  const std::vector<std::vector<bool>> none(4, std::vector<bool>(4, false));
  auto halves = none;
  halves[0][1] = halves[1][0] = halves[2][3] = halves[3][2] = true;
  Config config{.devices = 8, .linear = true, .verify_writes = true};
  if (mode == "many orders") config.verify_writes = false;
  if (mode == "threads") config = {.devices = 8, .max_delay_us = 20};
  if (mode == "no peers") config = {.devices = 4, .peers = none, .linear = true};
  if (mode == "no peers, threads") config = {.devices = 4, .peers = none, .max_delay_us = 20};
  if (mode == "pairs of peers") config = {.devices = 4, .peers = halves, .linear = true};
  if (mode == "few peers") config = {.devices = 4, .linear = true, .max_peers = 2};
  if (mode == "lost writes" || mode == "kept failures") config = {.devices = 4, .lies = {{.device = 0, .peer = 1}}, .linear = true};
  if (mode == "wrong reads")
    config = {.devices = 4, .lies = {{.device = 2, .peer = 0, .writes = false, .reads = true}}, .linear = true};
  if (mode == "lost copies")
    config = {.devices = 4, .lies = {{.device = 1, .peer = 3, .writes = false, .copies = true}}, .linear = true};
  return config;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string mode = argc > 1 ? argv[1] : "orders";
  const int seeds = argc > 2 ? std::atoi(argv[2]) : 1;
  virtual_cuda::reset(machine_for(mode));
  if (mode == "many orders") {
    all_orders(seeds);
  } else if (mode == "orders" || mode == "threads") {
    all_orders(seeds);
    one_gpu();
    many_tensors();
  } else if (mode == "failures") {
    failures();
  } else if (mode == "kept proofs") {
    cases += kept_proofs(argv[2]);
  } else if (mode == "kept failures") {
    cases += kept_failures(argv[2]);
  } else if (mode == "capture") {
    cases += unknown_in_a_capture();
    user_capture();
  } else {
    if (mode == "no peers") replay_after_a_larger_call();
    if (mode == "no peers") cases += first_scratch_in_a_capture();
    through_the_host(mode == "no peers");
  }
  std::printf("%d cases right\n", cases);
}
