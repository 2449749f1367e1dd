// Tensors whose memory cudaMalloc did not allocate, so that peer access alone does not let other devices use it.
#include "cases.h"

namespace engines_test {
namespace {

using virtual_cuda::Foreign;

Allocate foreign(Foreign kind) {
  return
      [kind](int device, int64_t bytes) { return DeviceMemory(virtual_cuda::allocate_foreign(kind, device, bytes)); };
}

// Closed on one device.
Allocate closed_on(int closed) {
  return [closed](int device, int64_t bytes) {
    return device == closed ? foreign(Foreign::closed)(device, bytes) : allocate_device(device, bytes);
  };
}

int64_t opened() {
  const auto calls = virtual_cuda::calls();
  return std::count(calls.begin(), calls.end(), "cudaMemPoolSetAccess");
}

// Calls of one program, each with tensors of its own.
class Calls {
 public:
  Calls(const std::string& program, int ranks, int64_t copy_engine_bytes = kCopyEngineBytes)
      : one_{program_of(program, ranks),
             kSum,
             {100, 7},
             {0, 0},
             {.devices = ranks, .copy_engine_bytes = copy_engine_bytes}},
        program_(copy_of(one_.named.program)),
        machine_(ranks, one_.setting),
        content_(one_.content()) {}

  void run(const std::string& where, const Allocate& allocate, int times = 1) {
    const Buffers buffers(content_, machine_.placement, allocate);
    for (int i = 0; i < times; ++i) run(where, {&buffers});
  }
  void run_two(const std::string& where, const Allocate& one, const Allocate& other) {
    const Buffers first(content_, machine_.placement, one), second(content_, machine_.placement, other);
    run(where, {&first, &second});
  }
  void capture(const std::string& where, const Allocate& allocate) {
    const Buffers buffers(content_, machine_.placement, allocate);
    const cudaStream_t stream = machine_.placement.current[0];
    const Captured graph(stream, cudaStreamCaptureModeGlobal,
                         [&] { run_events(program_, buffers.tables(), machine_.placement); });
    buffers.fill();
    synchronize(machine_.devices);
    graph.launch(stream);
    synchronize(machine_.devices);
    expect(where, buffers);
  }

 private:
  void run(const std::string& where, const std::vector<const Buffers*>& each) {
    std::vector<Table> tables;
    for (const Buffers* buffers : each) {
      buffers->fill();
      tables.push_back(buffers->tables()[0]);
    }
    run_events(program_, tables, machine_.placement);
    for (const Buffers* buffers : each) expect(where, *buffers);
  }
  void expect(const std::string& where, const Buffers& buffers) {
    buffers.collect();
    synchronize(machine_.devices);
    buffers.expect_reduced(where);
    expect_clean(where);
    ++cases;
  }

  Case one_;
  Schedule program_;
  Machine machine_;
  Content content_;
};

void expect_through_host(bool wanted, const std::string& where) {
  if ((virtual_cuda::allocated_bytes(-1) > 0) != wanted)
    fail(where + (wanted ? ": not through the host" : ": through the host"));
}

}  // namespace

// Pools are opened once for each ordered pair of devices; then nothing goes through the host.
void pools() {
  const std::string programs[] = {"sharded", "ring", "leader"};
  for (const std::string& program : programs) {
    Calls(program, 3).run("memory of pools", foreign(Foreign::pool), 3);
    if (opened() != 6) fail("pools were opened " + std::to_string(opened()) + " times, not 6");
    Calls(program, 3).run("memory mapped for all", foreign(Foreign::shared), 3);
  }
  Calls calls("sharded", 4);
  calls.run("makes the lanes", allocate_device);
  calls.capture("memory of pools, first seen in a capture", foreign(Foreign::pool));
  if (opened() != 12) fail("a capture opened " + std::to_string(opened() - 6) + " pools, not 6");
  expect_through_host(false, "memory that can be opened");
}

void closed_memory() {
  Calls("sharded", 3).run("memory of cudaMalloc", allocate_device, 3);
  expect_through_host(false, "memory of cudaMalloc");
  for (Foreign kind : {Foreign::pool, Foreign::closed})
    for (const std::string program : {"sharded", "ring", "leader"})
      Calls(program, 3).run("closed memory", foreign(kind), 3);
  expect_through_host(true, "closed memory");
  // Calls that differ in nothing else must not take each other's graphs: the first of a kind has none, later ones have.
  Calls calls("sharded", 3);
  const int64_t before = virtual_cuda::graphs_launched();
  for (int round = 0; round < 3; ++round) {
    calls.run("memory of cudaMalloc in turn", allocate_device);
    for (int device = 0; device < 3; ++device) calls.run("closed on one device in turn", closed_on(device));
  }
  if (virtual_cuda::graphs_launched() != before + 8) fail("calls of four kinds in turn: not each has a graph");
  calls.run_two("closed behind others", allocate_device, foreign(Foreign::closed));
  calls.run_two("closed before others", foreign(Foreign::closed), allocate_device);
  // A device may copy to its own closed memory; the copy engine of the device that it copies from may not.
  for (int device = 0; device < 3; ++device)
    Calls("ring", 3, 4).run("closed on one device, copies by the copy engine", closed_on(device), 3);
}

}  // namespace engines_test
