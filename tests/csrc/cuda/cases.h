// The programs read, and one case of the events engine, for the modes of engines_test.
#pragma once

#include <memory>
#include <set>

#include "machine.h"

namespace engines_test {

inline int cases = 0;
inline std::vector<Named> programs;

inline const Named& program_of(const std::string& name, int ranks) {
  for (const Named& named : programs)
    if (named.name == name && named.program.ranks == ranks) return named;
  fail("no program " + name + " for " + std::to_string(ranks) + " ranks");
}

template <class Visit>
void for_each_program(const std::set<int>& ranks, const Visit& visit) {
  for (const Named& named : programs)
    if (ranks.contains(named.program.ranks)) visit(named);
}

template <class Visit>
void for_each_allreduce(const std::set<int>& ranks, const Visit& visit) {
  for_each_program(ranks, [&](const Named& named) {
    if (named.collective == "allreduce") visit(named);
  });
}

// What few_kernels.cpp has.
constexpr Arithmetic kSum{DType::f32, Op::sum};
constexpr Arithmetic kArithmetics[] = {kSum,
                                       {DType::f32, Op::avg},
                                       {DType::bf16, Op::sum},
                                       {DType::f64, Op::max},
                                       {DType::i64, Op::prod},
                                       {DType::u8, Op::sum},
                                       {DType::u8, Op::bxor}};

struct Case {
  const Named& named;
  Arithmetic arithmetic;
  std::vector<int64_t> lengths;
  Shift shift;
  Setting setting;
  std::string name() const {
    return named.where() + ", " + arithmetic.name() + ", " + std::to_string(lengths[0]) + " elements, shifted by " +
           std::to_string(shift.elems) + ", " + setting.name();
  }
  Content content() const { return Content(named, arithmetic, Data::exact, lengths, shift); }
};

// Three calls: the first is enqueued, the second recorded and launched. The third is a replay, or with tensors that
// move an update.
inline void run_case(const Case& one, bool moves) {
  const Schedule program = copy_of(one.named.program);  // which is new to the engine
  const Machine machine(program.ranks, one.setting);
  const Content content = one.content();
  std::vector<std::unique_ptr<Buffers>> buffers;
  const int64_t replays = virtual_cuda::graphs_launched();
  for (int times = 0; times < 3; ++times) {
    if (times == 0 || moves) buffers.push_back(std::make_unique<Buffers>(content, machine.placement));
    buffers.back()->fill();
    run_events(program, buffers.back()->tables(), machine.placement);
    buffers.back()->collect();
  }
  synchronize(machine.devices);
  const std::string where = one.name() + (moves ? ", tensors that move" : "");
  for (const auto& each : buffers) each->expect_reduced(where);
  if (virtual_cuda::graphs_launched() != replays + 2) fail(where + ": not replayed");
  expect_clean(where);
  ++cases;
}
inline void run_case(const Case& one) {
  for (bool moves : {false, true}) run_case(one, moves);
}

// beside_test.cpp
void calls_beside_each_other();

// captures_test.cpp
void a_call_that_fails_in_a_capture();
void a_capture_on_a_blocking_stream(int device, bool first);
void captures_on_all_devices();

// closed_memory_test.cpp
void pools();
void closed_memory();

// copies_test.cpp
void copies_by_the_copy_engine();

// failures_test.cpp
void failures(int ranks);
void failures_by_flags();
void interruptions(int ranks);

// flags_test.cpp
void calls_by_flags();

// graph_cache_test.cpp
void graphs_by_themselves();

// graphs_test.cpp
void kept_graphs();
void lanes_of_captures();

// limits_test.cpp
void limits_of_a_launch();
void limits_without_peers();

// loads_test.cpp
void a_kernel_loaded_between_launches();

// new_threads_test.cpp
void calls_in_new_threads();

// peers_test.cpp
void kept_proofs(const std::string& path);
void kept_failures(const std::string& path);
void unknown_in_a_capture();
void two_captures();
void no_host_memory_once();
void first_scratch_in_a_capture();
void a_trial_that_fails_once();

// reuse_test.cpp
void calls_at_the_same_addresses();

// trials_test.cpp
void devices_that_are_busy();
void copies_that_hang(const std::string& path, int tried_later);
void nvlinks(const std::string& nvml);

}  // namespace engines_test
