// How many graphs are kept, and what a graph may be recorded from again.
#include "cuda/graph_cache.h"
#include "cases.h"
#include "cuda/launch.h"

namespace engines_test {
namespace {

using Nodes = std::function<void(Line& line, std::byte* memory)>;

Nodes copies(int count) {
  return [count](Line& line, std::byte* memory) {
    for (int i = 0; i < count; ++i) line.copy(memory, memory + 4, 4, cudaMemcpyDeviceToDevice);
  };
}

// Without rows, they do nothing.
Nodes launches(int count, size_t args_bytes) {
  return [count, args_bytes](Line& line, std::byte*) {
    const LaunchArgs args{};
    const auto kernel = reinterpret_cast<const void*>(cuda_kernel(DType::f32, Op::sum));
    for (int i = 0; i < count; ++i) line.launch({kernel, 1, kThreads, &args, args_bytes});
  };
}

void record(CallGraph& graph, const DeviceMemory& memory, const Nodes& nodes) {
  graph.record([&] {
    Line line(0, graph);
    nodes(line, static_cast<std::byte*>(memory.get()));
  });
}

// Whether the call has a graph that is neither recorded nor updated now.
bool has_graph(GraphCache& cache, uint64_t key, size_t addresses, const DeviceMemory& memory, const Nodes& nodes) {
  bool recorded = false;
  const CallGraph* const found = cache.find({key}, std::vector<std::byte*>(addresses), [&](CallGraph& graph) {
    recorded = true;
    record(graph, memory, nodes);
  });
  return found && !recorded;
}

// The graphs used last stay, as many as fit, and in any case the last.
void graphs_have_room(const Nodes& nodes, int kept, size_t addresses = 0) {
  const DeviceMemory memory = allocate_device(0, 8);
  GraphCache cache(1 << 20);
  for (uint64_t key = 0; key < 100; ++key)
    for (int times = 0; times < 2; ++times)
      if (has_graph(cache, key, addresses, memory, nodes)) fail("control: a call had a graph at once");
  for (uint64_t key = 100 - kept; key < 100; ++key)
    if (!has_graph(cache, key, addresses, memory, nodes)) fail("graph " + std::to_string(key) + " was dropped");
  if (has_graph(cache, 99 - kept, addresses, memory, nodes))
    fail("more than " + std::to_string(kept) + " graphs were kept");
  ++cases;
}

void expect_refused(const DeviceMemory& memory, int count, const std::string& words) {
  CallGraph graph;
  record(graph, memory, copies(3));
  std::string thrown;
  try {
    record(graph, memory, copies(count));
  } catch (const std::runtime_error& error) {
    thrown = error.what();
  }
  if (thrown.find(words) == std::string::npos) fail(std::to_string(count) + " launches instead of 3: " + thrown);
}

// Never met by the engine, whose keys hold all that decides it.
void a_repeated_call_with_other_launches() {
  const DeviceMemory memory = allocate_device(0, 8);
  expect_refused(memory, 2, "a repeated call has fewer launches than before");
  expect_refused(memory, 4, "a repeated call has more launches than before");
  expect_refused(memory, 3, "");
  ++cases;
}

}  // namespace

void graphs_by_themselves() {
  graphs_have_room(copies(100), 5);
  graphs_have_room(copies(1000), 1);
  graphs_have_room(copies(1), 3, 40'000);
  // With arguments of a node's own size, each takes twice as much.
  graphs_have_room(launches(100, 1024), 2);
  a_repeated_call_with_other_launches();
}

}  // namespace engines_test
