// What the events engine gives the devices: counts_test PROGRAMS ELEMS SLICES COPY_ENGINE_BYTES
// prints for each program, enqueued and launched as a graph, a line
//   NAME RANKS HOW KERNELS COPIES WAITS, and FROM TO BYTES of each pair of devices (-1: the host).
#include "cases.h"

using namespace engines_test;

namespace {

void print_traffic(const Named& named, const char* how) {
  const virtual_cuda::Traffic traffic = virtual_cuda::take_traffic();
  std::printf("%s %d %s %ld %ld %ld", named.name.c_str(), named.program.ranks, how, traffic.kernels, traffic.copies,
              traffic.waits);
  for (const auto& [pair, bytes] : traffic.bytes) std::printf(" %d %d %ld", pair.first, pair.second, bytes);
  std::printf("\n");
}

void print_calls(const Case& one) {
  const Schedule program = copy_of(one.named.program);  // which is new to the engine
  const Machine machine(program.ranks, one.setting);
  const Content content = one.content();
  const Buffers buffers(content, machine.placement);
  run_events(one.named.program, buffers.tables(), machine.placement);  // proves the peers
  for (const char* how : {"enqueued", "graph"}) {
    buffers.fill();
    virtual_cuda::take_traffic();
    run_events(program, buffers.tables(), machine.placement);
    print_traffic(one.named, how);
    buffers.collect();
    synchronize(machine.devices);
    buffers.expect_reduced(one.name());
  }
  expect_clean(one.name());
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) fail("counts_test PROGRAMS ELEMS SLICES COPY_ENGINE_BYTES");
  programs = read_programs(argv[1]);
  virtual_cuda::reset({.devices = 8, .linear = true});
  for (const Named& named : programs)
    print_calls(
        {named,
         kSum,
         {std::atol(argv[2])},
         {0, 0},
         {.devices = named.program.ranks, .slices = std::atoi(argv[3]), .copy_engine_bytes = std::atol(argv[4])}});
}
