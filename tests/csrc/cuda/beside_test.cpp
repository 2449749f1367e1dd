// Calls and replays that nothing of the user's orders, on the same devices: each has other tensors, and
// what the engine shares between them must not be touched by two at once.
#include "cases.h"

namespace engines_test {
namespace {

// Two ranks on these devices, each with a stream of its own, through the host where there are no peers.
class Beside {
 public:
  explicit Beside(const std::vector<int>& devices)
      : named_(program_of("sharded", 2)),
        program_(copy_of(named_.program)),
        content_(named_, kSum, Data::exact, {1000}, {0, 0}),
        buffers_(content_, place(devices)) {}

  void fill() const { buffers_.fill(); }
  void run() const { run_events(program_, buffers_.tables(), placement_); }
  void expect_reduced(const std::string& where) const {
    buffers_.collect();
    synchronize(2);
    buffers_.expect_reduced(where);
    expect_clean(where);
    ++cases;
  }
  cudaStream_t stream() const { return streams_[0].get(); }

 private:
  const Placement& place(const std::vector<int>& devices) {
    for (int device : devices) {
      const DeviceGuard guard(device);
      streams_.push_back(make_stream());
      placement_.device_of_rank.push_back(device);
      placement_.current.push_back(streams_.back().get());
    }
    return placement_;
  }

  const Named& named_;
  Schedule program_;  // so that each instance's first call is enqueued
  Content content_;
  Placement placement_;
  std::vector<Stream> streams_;
  Buffers buffers_;
};

// Enqueued, recorded, replayed.
void warm_up(const Beside& call) {
  for (int times = 0; times < 3; ++times) call.run();
  synchronize(2);
}

// A replay and calls that enqueue, each before the other.
void calls_that_begin_on_different_devices() {
  const Beside replayed({0, 1}), first({1, 0}), second({1, 0});
  warm_up(replayed);
  for (const Beside* call : {&replayed, &first, &second}) call->fill();
  for (const Beside* call : {&first, &replayed, &second}) call->run();
  synchronize(2);
  for (const Beside* call : {&replayed, &first, &second}) call->expect_reduced("beside calls from another device");
}

void a_users_graph_beside_a_call() {
  const Beside captured({0, 1}), called({0, 1});
  for (const Beside* call : {&captured, &called}) warm_up(*call);
  const Captured graph(captured.stream(), cudaStreamCaptureModeGlobal, [&] { captured.run(); });
  for (const Beside* call : {&captured, &called}) call->fill();
  synchronize(2);
  graph.launch(captured.stream());
  called.run();
  synchronize(2);
  for (const Beside* call : {&captured, &called}) call->expect_reduced("a user's graph beside a call");
}

// The engine's streams that are part of a capture are so until it ends.
void a_call_while_another_is_captured() {
  const Beside captured({0, 1}), called({0, 1});
  for (const Beside* call : {&captured, &called}) warm_up(*call);
  called.fill();
  cudaGraph_t raw;
  cuda_check(cudaStreamBeginCapture(captured.stream(), cudaStreamCaptureModeGlobal), "cudaStreamBeginCapture");
  captured.run();
  called.run();
  captured.run();
  cuda_check(cudaStreamEndCapture(captured.stream(), &raw), "cudaStreamEndCapture");
  const Graph graph(raw);
  called.expect_reduced("a call while another is captured");
}

// The capture that began last is the first to be given lanes.
void a_capture_inside_another() {
  const Beside outer({0, 1}), inner({0, 1});
  for (const Beside* call : {&outer, &inner}) warm_up(*call);
  std::optional<Captured> inner_graph;
  const Captured outer_graph(outer.stream(), cudaStreamCaptureModeRelaxed, [&] {
    inner_graph.emplace(inner.stream(), cudaStreamCaptureModeRelaxed, [&] { inner.run(); });
    outer.run();
  });
  for (const Beside* call : {&outer, &inner}) call->fill();
  synchronize(2);
  outer_graph.launch(outer.stream());
  inner_graph->launch(inner.stream());
  synchronize(2);
  for (const Beside* call : {&outer, &inner}) call->expect_reduced("a capture inside another");
}

// Waits between devices of a call of four ranks on two devices, once it is replayed.
int64_t waits_of_a_replay(bool own_streams) {
  const Named& named = program_of("sharded", 4);
  const Schedule program = copy_of(named.program);  // which is new to the engine
  Machine machine(4, {.devices = 2});
  std::vector<Stream> streams;
  for (int rank = 0; own_streams && rank < 4; ++rank) {
    const DeviceGuard guard(machine.placement.device_of_rank[rank]);
    machine.placement.current[rank] = streams.emplace_back(make_stream()).get();
  }
  const Content content(named, kSum, Data::exact, {100}, {0, 0});
  const Buffers buffers(content, machine.placement);
  int64_t waits = 0;
  for (int times = 0; times < 3; ++times) {
    buffers.fill();
    virtual_cuda::take_traffic();
    run_events(program, buffers.tables(), machine.placement);
    waits = virtual_cuda::take_traffic().waits;
    buffers.collect();
  }
  synchronize(2);
  buffers.expect_reduced("ranks that share streams");
  expect_clean("ranks that share streams");
  return waits;
}

// However many ranks have the second device's stream: a second stream is waited for once more, and waits once more.
void one_wait_for_each_stream() {
  const int64_t shared = waits_of_a_replay(false), own = waits_of_a_replay(true);
  if (own != shared + 2)
    fail("a replay has " + std::to_string(shared) + " waits, and " + std::to_string(own) + " with a stream more");
  ++cases;
}

}  // namespace

void calls_beside_each_other() {
  calls_that_begin_on_different_devices();
  a_users_graph_beside_a_call();
  a_call_while_another_is_captured();
  a_capture_inside_another();
  one_wait_for_each_stream();
}

}  // namespace engines_test
