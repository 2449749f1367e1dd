// The CUDA engines on the virtual runtime: engines_test MODE PROGRAMS [ORDERS or FILE]
// prints "N cases right".
#include "cases.h"
#include "cuda/graph_cache.h"
#include "cuda/peers.h"

using namespace engines_test;
using virtual_cuda::Config;

namespace {

bool uses_host(const Schedule& program) {
  return std::any_of(program.instructions.begin(), program.instructions.end(),
                     [](const Instruction& instruction) { return instruction.rank == kHost; });
}

std::vector<Case> some_cases(const std::set<int>& some_ranks, bool with_host) {
  std::vector<Case> some;
  const auto arithmetic = [&] { return kArithmetics[some.size() % std::size(kArithmetics)]; };
  for_each_program(some_ranks, [&](const Named& named) {
    if (uses_host(named.program) && !with_host) return;
    const int ranks = named.program.ranks;
    some.push_back({named, arithmetic(), {257, 3, 64}, {0, 0}, {.devices = ranks}});
    const Setting copying{.devices = 2, .in_blocks = ranks == 4, .slices = 3, .copy_engine_bytes = 64};
    some.push_back({named, arithmetic(), {1000}, {1, 0}, copying});
    some.push_back({named, arithmetic(), {333}, {2, 3}, {.devices = 1, .lane_per_rank = true, .slices = 2}});
  });
  return some;
}

// At least so many in all, and each case at least once.
void random_orders(const std::vector<Case>& some, int orders) {
  const int each = std::max(2, orders / static_cast<int>(some.size()) + 1);
  for (const Case& one : some)
    for (int seed = 1; seed <= each; ++seed) {
      virtual_cuda::reseed(seed);
      run_case(one, seed % 2 == 0);
    }
}

void run_on_one_gpu(const Case& one) {
  const Machine machine(one.named.program.ranks, one.setting);
  const Content content = one.content();
  const Buffers buffers(content, machine.placement);
  buffers.fill();
  run_tiles_cuda(one.named.program, buffers.tables(), 0, machine.placement.current[0]);
  buffers.collect();
  synchronize(1);
  buffers.expect_reduced("tiles, " + one.name());
  expect_clean("tiles, " + one.name());
  ++cases;
}

void one_gpu() {
  for_each_program({2, 20}, [](const Named& named) {
    run_on_one_gpu({named, kSum, {5, 7}, {1, 0}, {1}});
    run_on_one_gpu({named, kSum, {9000}, {0, 4}, {1}});
  });
  // More rows, and more pointers, than one launch holds.
  run_on_one_gpu({program_of("leader", 2), kSum, std::vector<int64_t>(300, 61), {0, 0}, {1}});
  run_on_one_gpu({program_of("sharded", 8), kSum, std::vector<int64_t>(40, 61), {0, 0}, {1}});
  run_on_one_gpu({program_of("leader", 20), kSum, std::vector<int64_t>(140, 61), {0, 0}, {1}});
}

// A call has a table for each of its dtypes.
void several_dtypes(const Named& named, int devices) {
  const Machine machine(named.program.ranks, {.devices = devices});
  const std::vector<std::vector<int64_t>> lengths{{257, 3}, {1, 500, 64}, {90}};
  const Arithmetic arithmetics[] = {kSum, {DType::bf16, Op::sum}, {DType::u8, Op::sum}};
  std::vector<std::unique_ptr<Content>> contents;
  std::vector<std::unique_ptr<Buffers>> buffers;
  std::vector<Table> tables;
  for (size_t i = 0; i < lengths.size(); ++i) {
    contents.push_back(std::make_unique<Content>(named, arithmetics[i], Data::exact, lengths[i], Shift{1, 0}));
    buffers.push_back(std::make_unique<Buffers>(*contents.back(), machine.placement));
    tables.push_back(buffers.back()->tables()[0]);
  }
  for (int times = 1; times <= 3; ++times) {
    for (const auto& of_dtype : buffers) of_dtype->fill();
    if (devices == 1)
      run_tiles_cuda(named.program, tables, 0, machine.placement.current[0]);
    else
      run_events(named.program, tables, machine.placement);
    for (const auto& of_dtype : buffers) of_dtype->collect();
  }
  synchronize(devices);
  const std::string where = "several dtypes, " + named.where() + ", " + std::to_string(devices) + " devices";
  for (const auto& of_dtype : buffers) of_dtype->expect_reduced(where);
  expect_clean(where);
  ++cases;
}

// Pairs without peer access, and pairs whose access loses data, go through the host.
void through_the_host() {
  for_each_program({2, 4, 6}, [](const Named& named) {
    run_case({named, kSum, {2000, 5}, {1, 0}, {.devices = std::min(named.program.ranks, 4), .slices = 2}});
  });
}

// What does not fit one piece of the host's memory goes in several.
void in_pieces() {
  constexpr int64_t length = 2 * kStageBytes / 8 + 77;
  for_each_allreduce({2, 3}, [](const Named& named) {
    run_case({named, {DType::i64, Op::prod}, {length}, {0, 0}, {.devices = named.program.ranks, .slices = 1}});
  });
}

// A graph keeps the scratch memory that it was recorded with, also when a larger call needed more.
void replay_after_a_larger_call() {
  const Case small{program_of("leader", 2), kSum, {100}, {0, 0}, {.devices = 2}};
  const Machine machine(2, small.setting);
  const Content content = small.content();
  const Buffers buffers(content, machine.placement);
  const auto call = [&] {
    buffers.fill();
    run_events(small.named.program, buffers.tables(), machine.placement);
    buffers.collect();
    synchronize(2);
  };
  for (int times = 0; times < 3; ++times) call();
  run_case({program_of("leader", 4), kSum, {100}, {0, 0}, {.devices = 4}});
  call();
  buffers.expect_reduced("replayed after a larger call");
  expect_clean("replayed after a larger call");
  ++cases;
}

// The user captures the call and replays it.
void user_capture(const Case& one) {
  const Machine machine(one.named.program.ranks, one.setting);
  const Content content = one.content();
  const Buffers buffers(content, machine.placement);
  run_events(one.named.program, buffers.tables(), machine.placement);  // proves the peers, makes the lanes
  synchronize(machine.devices);
  const cudaStream_t stream = machine.placement.current[0];
  const Captured graph(stream, cudaStreamCaptureModeThreadLocal,
                       [&] { run_events(one.named.program, buffers.tables(), machine.placement); });
  for (int times = 0; times < 2; ++times) {
    buffers.fill();
    synchronize(machine.devices);
    graph.launch(stream);
    synchronize(machine.devices);
    buffers.collect();
    synchronize(machine.devices);
    buffers.expect_reduced("captured, " + one.name());
    expect_clean("captured, " + one.name());
  }
  ++cases;
}

void user_captures() {
  for_each_program({3}, [](const Named& named) {
    user_capture({named, kSum, {500}, {0, 0}, {.devices = 1, .lane_per_rank = true, .slices = 2}});
    user_capture({named, kSum, {500}, {0, 0}, {.devices = 3, .slices = 2, .copy_engine_bytes = 64}});
  });
}

void waits() {
  for (const Named& named : programs) {
    expect_ordered(named);
    expect_launches(named);
    ++cases;
  }
}

Config machine_for(const std::string& mode) {
  const std::vector<std::vector<bool>> none(4, std::vector<bool>(4, false));
  auto halves = none;
  halves[0][1] = halves[1][0] = halves[2][3] = halves[3][2] = true;
  Config config{.devices = 8, .linear = true};
  if (mode == "orders") config.verify_writes = true;
  if (mode == "threads") config = {.devices = 8, .max_delay_us = 20};
  if (mode.ends_with("no peers") || mode == "pieces" || mode == "beside")
    config = {.devices = 4, .peers = none, .linear = true};
  if (mode == "flags")
    config = {.devices = 4, .max_delay_us = 20, .multiprocessors = 6, .blocks_wait = true, .loads_wait = true};
  if (mode == "no peers, threads") config = {.devices = 4, .peers = none, .max_delay_us = 20};
  if (mode == "pairs of peers") config = {.devices = 4, .peers = halves, .linear = true};
  if (mode == "same addresses") config = {.devices = 4, .linear = true, .reuse_addresses = true};
  if (mode == "kernels hang")
    config = {.devices = 4, .lies = {{.device = 0, .peer = 1, .hangs = true}}, .linear = true};
  if (mode == "copies hang")
    config = {.devices = 4,
              .lies = {{.device = 0, .peer = 1, .writes = false, .copies = true, .hangs = true}},
              .linear = true};
  if (mode == "closed memory") config = {.devices = 4, .linear = true, .pools_open = false};
  if (mode == "few peers") config = {.devices = 4, .linear = true, .max_peers = 2};
  if (mode == "lost writes" || mode == "kept failures")
    config = {.devices = 4, .lies = {{.device = 0, .peer = 1}}, .linear = true};
  if (mode == "wrong reads")
    config = {.devices = 4, .lies = {{.device = 2, .peer = 0, .writes = false, .reads = true}}, .linear = true};
  if (mode == "lost copies")
    config = {.devices = 4, .lies = {{.device = 1, .peer = 3, .writes = false, .copies = true}}, .linear = true};
  return config;
}

std::string beside(const std::string& path, const std::string& name) {
  return path.substr(0, path.rfind('/') + 1) + name;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) fail("engines_test MODE PROGRAMS [ORDERS or FILE]");
  const std::string mode = argv[1];
  programs = read_programs(argv[2]);
  virtual_cuda::reset(machine_for(mode));
  most_graph_bytes = 2 << 20;  // the virtual runtime looks at all graphs whenever somebody waits
  if (mode == "waits") {
    waits();
  } else if (mode == "many orders") {
    random_orders(some_cases({2, 3, 4, 8}, true), std::atoi(argv[3]));
  } else if (mode == "orders" || mode == "threads") {
    // Looking for undeclared writes goes over all memory, of which the way through the host keeps much.
    random_orders(some_cases({3, 8}, mode == "threads"), 0);
    one_gpu();
    for_each_program({4}, [](const Named& named) {
      several_dtypes(named, 1);
      if (!uses_host(named.program)) several_dtypes(named, 4);
    });
  } else if (mode == "failures" || mode == "failures, no peers") {
    failures(mode == "failures" ? 3 : 2);
  } else if (mode == "flags") {
    a_kernel_loaded_between_launches();
    calls_by_flags();
    failures_by_flags();
  } else if (mode == "same addresses") {
    calls_at_the_same_addresses();
  } else if (mode == "limits") {
    limits_of_a_launch();
  } else if (mode == "limits, no peers") {
    limits_without_peers();
  } else if (mode == "interruptions" || mode == "interruptions, no peers") {
    interruptions(mode == "interruptions" ? 3 : 2);
  } else if (mode == "kept proofs") {
    kept_proofs(argv[3]);
  } else if (mode == "kept failures") {
    kept_failures(argv[3]);
  } else if (mode == "kernels hang" || mode == "copies hang") {
    // The copy engine's way from 0 to 1 is also that of the pair 1 and 0, which hangs then, before the others' turn.
    copies_that_hang(beside(argv[2], "proofs"), mode == "kernels hang" ? 9 : 3);
  } else if (mode == "busy devices") {
    devices_that_are_busy();
  } else if (mode == "nvlinks" || mode == "nvlinks without NVML") {
    nvlinks(mode == "nvlinks" ? beside(argv[2], "libnvidia-ml.so.1") : "");
  } else if (mode == "pools") {
    pools();
  } else if (mode == "closed memory") {
    closed_memory();
  } else if (mode == "capture") {
    unknown_in_a_capture();
    two_captures();
    user_captures();
    a_call_that_fails_in_a_capture();
    for (int device : {0, 1})
      for (bool first : {true, false}) a_capture_on_a_blocking_stream(device, first);
    captures_on_all_devices();
  } else if (mode == "new threads") {
    calls_in_new_threads();
  } else if (mode == "beside") {
    calls_beside_each_other();
  } else if (mode == "graphs" || mode == "graphs, no peers") {
    kept_graphs();
    graphs_by_themselves();
    lanes_of_captures();
  } else if (mode == "pieces") {
    in_pieces();
  } else if (mode == "copies") {
    copies_by_the_copy_engine();
  } else {
    if (mode == "no peers") {
      replay_after_a_larger_call();
      no_host_memory_once();
      first_scratch_in_a_capture();
    }
    if (mode == "lost copies") a_trial_that_fails_once();
    through_the_host();
  }
  std::printf("%d cases right\n", cases);
}
