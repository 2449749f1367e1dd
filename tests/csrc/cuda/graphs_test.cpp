// Which calls are replayed as graphs, and what is kept for it.
#include <map>

#include "cases.h"

namespace engines_test {
namespace {

using Counts = std::map<std::string, int>;

template <class Run>
Counts calls_made_by(const Run& run) {
  const size_t before = virtual_cuda::calls().size();
  run();
  const auto calls = virtual_cuda::calls();
  Counts counts;
  for (size_t i = before; i < calls.size(); ++i) ++counts[calls[i]];
  return counts;
}

void expect(const Counts& found, const Counts& wanted, const std::string& where) {
  for (const auto& [call, times] : wanted)
    if (const auto at = found.find(call); (at == found.end() ? 0 : at->second) != times)
      fail(where + ": " + call + " was called " + std::to_string(at == found.end() ? 0 : at->second) + " times, not " +
           std::to_string(times));
}

const Counts kEnqueued{{"cudaGraphCreate", 0}, {"cudaGraphInstantiate", 0}, {"cudaGraphLaunch", 0}};
const Counts kRecorded{{"cudaGraphInstantiate", 1}, {"cudaGraphLaunch", 1}, {"cuLaunchKernel", 0}};
const Counts kReplayed{{"cudaGraphInstantiate", 0},
                       {"cudaGraphLaunch", 1},
                       {"cuLaunchKernel", 0},
                       {"cudaGraphExecKernelNodeSetParams", 0}};
const Counts kUpdated{{"cudaGraphInstantiate", 0}, {"cudaGraphLaunch", 1}, {"cuLaunchKernel", 0}};

// Calls of one key, with as many sets of tensors as are asked for.
class Sets {
 public:
  explicit Sets(int64_t elems = 100)
      : one_{program_of("sharded", 2), kSum, {elems}, {0, 0}, {.devices = 2, .slices = 1}},
        program_(copy_of(one_.named.program)),
        machine_(2, one_.setting),
        content_(one_.content()) {}

  Counts run(size_t set, Op op = Op::sum) {
    while (set >= sets_.size()) sets_.push_back(std::make_unique<Buffers>(content_, machine_.placement));
    const Buffers& buffers = *sets_[set];
    buffers.fill();
    std::vector<Table> tables = buffers.tables();
    tables[0].op = op;
    const Counts counts = calls_made_by([&] { run_events(program_, tables, machine_.placement); });
    buffers.collect();
    synchronize(2);
    const Content other(one_.named, {DType::f32, op}, Data::exact, one_.lengths, one_.shift);
    const std::string where = "set " + std::to_string(set) + ", operation " + std::to_string(static_cast<int>(op));
    buffers.expect(other.wanted(content_.before()), where);
    expect_clean(where);
    return counts;
  }

 private:
  Case one_;
  Schedule program_;
  Machine machine_;
  Content content_;
  std::vector<std::unique_ptr<Buffers>> sets_;
};

void the_same_tensors() {
  Sets sets;
  expect(sets.run(0), kEnqueued, "the first call");
  expect(sets.run(0), kRecorded, "the second call");
  expect(sets.run(0), kReplayed, "the third call");
  ++cases;
}

// Never the same tensors twice.
void tensors_that_move() {
  Sets sets;
  expect(sets.run(0), kEnqueued, "the first call");
  expect(sets.run(1), kRecorded, "other tensors");
  for (int set = 2; set < 100; ++set) expect(sets.run(set), kUpdated, "tensors that move");
  ++cases;
}

void tensors_in_turn() {
  for (int count : {2, 3, 7}) {
    Sets sets;
    for (int round = 1; round <= 4; ++round)
      for (int set = 0; set < count; ++set) {
        const Counts counts = sets.run(set);
        if (round > 2) expect(counts, kReplayed, std::to_string(count) + " sets of tensors in turn");
      }
  }
  ++cases;
}

// A graph serves only the operation that it was recorded for.
void operations_in_turn() {
  Sets sets;
  for (int round = 0; round < 4; ++round)
    for (Op op : {Op::sum, Op::avg}) sets.run(0, op);
  expect(sets.run(0, Op::sum), kReplayed, "operations in turn");
  ++cases;
}

// One kind of call has no graph any more, others do.
void a_graph_that_cannot_be_made() {
  Sets sets(100), others(200);
  sets.run(0);
  virtual_cuda::fail_call("cudaGraphInstantiate", cudaErrorMemoryAllocation);
  expect(sets.run(0), {{"cudaGraphLaunch", 0}}, "a graph that cannot be made");
  for (int set : {0, 1, 2, 1, 0}) expect(sets.run(set), kEnqueued, "after a graph that could not be made");
  others.run(0);
  expect(others.run(0), kRecorded, "another kind of call");
  ++cases;
}

void a_graph_that_cannot_be_updated() {
  Sets sets;
  for (int set : {0, 1}) sets.run(set);
  virtual_cuda::fail_call("cudaGraphExecKernelNodeSetParams", cudaErrorUnknown);
  virtual_cuda::fail_call("cudaGraphExecMemcpyNodeSetParams1D", cudaErrorUnknown);
  expect(sets.run(2), {{"cudaGraphLaunch", 0}}, "a graph that cannot be updated");
  virtual_cuda::forget_failures();
  for (int set : {0, 1, 2}) expect(sets.run(set), kEnqueued, "after a graph that could not be updated");
  ++cases;
}

void a_graph_that_cannot_be_launched() {
  Sets sets;
  for (int times = 0; times < 2; ++times) sets.run(0);
  virtual_cuda::fail_call("cudaGraphLaunch", cudaErrorUnknown);
  std::string thrown;
  try {
    sets.run(0);
  } catch (const std::runtime_error& error) {
    thrown = error.what();
  }
  if (thrown.find("cudaGraphLaunch failed") == std::string::npos) fail("a graph that cannot be launched: " + thrown);
  for (int set : {0, 1, 0}) expect(sets.run(set), kEnqueued, "after a graph that could not be launched");
  ++cases;
}

// A call that the user captures, twice in one graph. Its result is then that of one.
class CapturedCall {
 public:
  CapturedCall()
      : one_{program_of("sharded", 2), {DType::f64, Op::max}, {1000}, {0, 0}, {.devices = 2}},
        machine_(2, one_.setting),
        content_(one_.content()),
        buffers_(content_, machine_.placement) {
    buffers_.fill();
    synchronize(2);
  }

  void run() const { run_events(one_.named.program, buffers_.tables(), machine_.placement); }
  Counts capture() {
    return calls_made_by([&] {
      graph_ = std::make_unique<Captured>(stream(), cudaStreamCaptureModeThreadLocal, [&] {
        for (int times = 0; times < 2; ++times) run();
      });
    });
  }
  std::string thrown_by_capture() {
    cuda_check(cudaStreamBeginCapture(stream(), cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
    std::string thrown;
    try {
      run();
    } catch (const std::runtime_error& error) {
      thrown = error.what();
    }
    cudaGraph_t graph;
    cuda_check(cudaStreamEndCapture(stream(), &graph), "cudaStreamEndCapture");
    const Graph owned(graph);
    return thrown;
  }
  void launch() const { graph_->launch(stream()); }
  void destroy_graph() { graph_.reset(); }
  void expect_reduced() const {
    synchronize(2);
    buffers_.collect();
    synchronize(2);
    buffers_.expect_reduced("captured calls beside each other");
    expect_clean("captured calls beside each other");
  }

 private:
  cudaStream_t stream() const { return machine_.placement.current[0]; }

  Case one_;
  Machine machine_;
  Content content_;
  Buffers buffers_;
  std::unique_ptr<Captured> graph_;
};

const Counts kUsedLanes{{"cudaStreamCreateWithFlags", 0}, {"cudaHostAlloc", 0}, {"cudaMalloc", 0}};

void lanes_are_used_again() {
  CapturedCall first, second, third;
  first.run();
  synchronize(2);
  for (CapturedCall* call : {&first, &second}) {
    const Counts counts = call->capture();
    if (!counts.contains("cudaStreamCreateWithFlags")) fail("a capture has the lanes of another that is alive");
    if (counts.at("cudaUserObjectCreate") != 1) fail("a capture's calls have different lanes");
  }
  for (const CapturedCall* call : {&first, &second, &first}) call->launch();
  for (const CapturedCall* call : {&first, &second}) call->expect_reduced();
  first.destroy_graph();
  expect(third.capture(), kUsedLanes, "a capture after another is gone");
  for (const CapturedCall* call : {&second, &third}) call->launch();
  for (const CapturedCall* call : {&second, &third}) call->expect_reduced();
  ++cases;
}

// The lanes of a graph that is gone are in use until its last launch is done.
void a_graph_destroyed_while_it_runs() {
  CapturedCall first, second;
  first.run();
  synchronize(2);
  first.capture();
  first.launch();
  first.destroy_graph();
  second.capture();
  second.launch();
  for (const CapturedCall* call : {&first, &second}) call->expect_reduced();
  ++cases;
}

// Lanes that a captured graph could not take are free for the next.
void lanes_that_a_graph_does_not_take() {
  CapturedCall call;
  call.run();
  call.capture();
  call.destroy_graph();
  synchronize(2);
  for (const std::string step : {"cudaUserObjectCreate", "cudaGraphRetainUserObject"}) {
    for (int times = 0; times < 10; ++times) {  // more than there are unused lanes
      virtual_cuda::fail_call(step, cudaErrorMemoryAllocation);
      const std::string thrown = call.thrown_by_capture();
      if (thrown.find(step + " failed: cudaErrorMemoryAllocation") == std::string::npos)
        fail(step + ": thrown: " + thrown);
    }
    expect(call.capture(), kUsedLanes, "after " + step + " failed");
    call.launch();
    call.expect_reduced();
    call.destroy_graph();
    synchronize(2);
  }
  ++cases;
}

}  // namespace

void kept_graphs() {
  the_same_tensors();
  tensors_that_move();
  tensors_in_turn();
  operations_in_turn();
  a_graph_that_cannot_be_made();
  a_graph_that_cannot_be_updated();
  a_graph_that_cannot_be_launched();
}

void lanes_of_captures() {
  lanes_are_used_again();
  a_graph_destroyed_while_it_runs();
  lanes_that_a_graph_does_not_take();
}

}  // namespace engines_test
