#include <algorithm>
#include <map>
#include <mutex>

#include "cuda/engines.h"
#include "cuda/enqueue.h"
#include "cuda/flags.h"
#include "cuda/graph_cache.h"
#include "cuda/lane_sets.h"
#include "cuda/peers.h"

namespace fastreduce {
namespace {

// A device and torch's current stream on it.
struct Current {
  int device;
  cudaStream_t stream;
  bool operator==(const Current&) const = default;
};

class EventsEngine {
 public:
  void run(const Schedule& schedule, const std::vector<Table>& tables, const Placement& placement);

 private:
  // The lanes and streams of one call.
  struct CallLanes : Layout {
    std::optional<Capture> capture;  // the user's, if the call is captured
    std::vector<Current> currents;   // if the call is captured, only the streams in that capture
    Lane& hub() const { return *lanes.front(); }
  };
  bool run_by_flags(const Schedule& schedule, const std::vector<Table>& tables, const Placement& placement,
                    const CallLanes& call);
  CallLanes prepare(const Schedule& schedule, const std::vector<Table>& tables, const Placement& placement);
  void enqueue(const Schedule& schedule, const std::vector<Table>& tables, const CallLanes& call);
  CallGraph* graph_of(const Schedule& schedule, const std::vector<Table>& tables, const Placement& placement,
                      const CallLanes& call);
  void replay(const CallGraph& graph, const CallLanes& call);
  void fork(const CallLanes& call);
  void join(const CallLanes& call);
  void before(const CallLanes& call);
  void after(const CallLanes& call);

  std::mutex mutex_;
  LaneSets lanes_;
  std::map<std::pair<int, cudaStream_t>, Event> ready_;
  GraphCache graphs_;
  SignalSets signals_;
};

EventsEngine::CallLanes EventsEngine::prepare(const Schedule& schedule, const std::vector<Table>& tables,
                                              const Placement& placement) {
  CallLanes call;
  call.slices = placement.slices > 0 ? placement.slices : schedule.slices(buffer_bytes(tables));
  call.copy_engine_bytes = placement.copy_engine_bytes;
  call.closed = closed_buffers(schedule, tables, placement.device_of_rank);
  std::vector<std::optional<Capture>> capture_of_rank;
  for (int rank = 0; rank < schedule.ranks; ++rank) {
    const auto capture =
        capture_of_rank.emplace_back(capture_of(placement.device_of_rank[rank], placement.current[rank]));
    if (capture && call.capture && capture != call.capture)
      throw std::invalid_argument(
          "fastreduce: the devices' current streams are captured into different CUDA graphs; "
          "capture them into one, by events, or make the call outside");
    if (capture) call.capture = capture;
  }
  LaneSets::Set& lanes = lanes_.of(call.capture);
  for (int rank = 0; rank < schedule.ranks; ++rank) {
    const int device = placement.device_of_rank[rank];
    std::unique_ptr<Lane>& own = lanes[{device, placement.lane_per_rank ? rank : 0}];
    if (!own) own = std::make_unique<Lane>(device);
    auto found = std::find(call.lanes.begin(), call.lanes.end(), own.get());
    if (found == call.lanes.end()) found = call.lanes.insert(found, own.get());
    call.lane_of_rank.push_back(static_cast<int>(found - call.lanes.begin()));
    const Current current{device, placement.current[rank]};
    if (capture_of_rank[rank] == call.capture &&
        std::find(call.currents.begin(), call.currents.end(), current) == call.currents.end())
      call.currents.push_back(current);
  }
  return call;
}

void wait(cudaStream_t stream, cudaEvent_t event) {
  cuda_check(cudaStreamWaitEvent(stream, event, 0), "cudaStreamWaitEvent");
}

void record(cudaEvent_t event, cudaStream_t stream) { cuda_check(cudaEventRecord(event, stream), "cudaEventRecord"); }

// `before` makes the hub's stream wait for torch's streams; `after` makes torch's streams wait for the hub's.
void EventsEngine::before(const CallLanes& call) {
  for (const Current& current : call.currents) {
    Event& ready = ready_[{current.device, current.stream}];
    const DeviceGuard guard(current.device);
    if (!ready.get()) ready = make_event();
    record(ready.get(), current.stream);
    wait(call.hub().stream.get(), ready.get());
  }
}

void EventsEngine::after(const CallLanes& call) {
  const DeviceGuard guard(call.hub().device);
  record(call.hub().joined.get(), call.hub().stream.get());
  for (const Current& current : call.currents) {
    const DeviceGuard there(current.device);  // torch's default stream is named by the current device
    wait(current.stream, call.hub().joined.get());
  }
}

// `fork` makes the other lanes wait for the hub; `join` makes the hub wait for them.
void EventsEngine::fork(const CallLanes& call) {
  if (call.lanes.size() == 1) return;
  const DeviceGuard guard(call.hub().device);
  record(call.hub().joined.get(), call.hub().stream.get());
  for (Lane* lane : call.lanes)
    if (lane != &call.hub()) wait(lane->stream.get(), call.hub().joined.get());
}

void EventsEngine::join(const CallLanes& call) {
  for (Lane* lane : call.lanes) {
    if (lane == &call.hub()) continue;
    const DeviceGuard guard(lane->device);
    record(lane->joined.get(), lane->stream.get());
    wait(call.hub().stream.get(), lane->joined.get());
  }
}

void EventsEngine::enqueue(const Schedule& schedule, const std::vector<Table>& tables, const CallLanes& call) {
  std::vector<Line> lines;
  for (Lane* lane : call.lanes) lines.emplace_back(lane->device, lane->stream.get());
  fork(call);
  Enqueue(schedule, tables, call, std::move(lines)).run();
  join(call);
}

// All that decides which nodes the call's graph has, and on which devices.
GraphCache::Key key_of(const Schedule& schedule, const std::vector<Table>& tables, const Placement& placement,
                       const Layout& layout) {
  GraphCache::Key key{schedule.id,
                      static_cast<uint64_t>(layout.slices),
                      placement.lane_per_rank,
                      static_cast<uint64_t>(placement.copy_engine_bytes.nvlink),
                      static_cast<uint64_t>(placement.copy_engine_bytes.pcie),
                      layout.closed.size()};
  for (const auto& [device, buffer] : layout.closed)
    key.insert(key.end(), {static_cast<uint64_t>(device), static_cast<uint64_t>(buffer)});
  key.insert(key.end(), placement.device_of_rank.begin(), placement.device_of_rank.end());
  for (const Table& table : tables) {
    key.insert(key.end(), {static_cast<uint64_t>(table.dtype), static_cast<uint64_t>(table.op), table.rows.size()});
    for (const Row& row : table.rows)
      key.insert(key.end(), {static_cast<uint64_t>(row.shard), static_cast<uint64_t>(row.elems)});
  }
  return key;
}

// nullptr: the call is enqueued.
CallGraph* EventsEngine::graph_of(const Schedule& schedule, const std::vector<Table>& tables,
                                  const Placement& placement, const CallLanes& call) {
  GraphCache::Addresses addresses;
  for (const Table& table : tables) addresses.insert(addresses.end(), table.pointers.begin(), table.pointers.end());
  return graphs_.find(key_of(schedule, tables, placement, call), addresses, [&](CallGraph& graph) {
    std::vector<Line> lines;
    for (Lane* lane : call.lanes) lines.emplace_back(lane->device, graph);
    Enqueue enqueue(schedule, tables, call, std::move(lines));
    graph.record([&] { enqueue.run(); });
    graph.uses_host = enqueue.uses_host();
  });
}

// Launching a graph orders it on the hub's stream only. If it uses the lanes' staging memory, it must also come after
// earlier work of the lanes and before later work.
void EventsEngine::replay(const CallGraph& graph, const CallLanes& call) {
  const DeviceGuard guard(call.hub().device);
  if (graph.uses_host) join(call);
  graph.run(call.hub().stream.get());
  if (graph.uses_host) fork(call);
}

// The streams on which the lanes' launches run at the same time: torch's own, whose order is all that is needed. Lanes
// of one device have their own, between events. Empty if there are none.
std::vector<cudaStream_t> streams_of(const Placement& placement, const Layout& layout,
                                     const std::vector<Current>& currents) {
  std::vector<cudaStream_t> streams(layout.lanes.size());
  for (size_t rank = 0; rank < layout.lane_of_rank.size(); ++rank) {
    const int lane = layout.lane_of_rank[rank];
    const Current current{placement.device_of_rank[rank], placement.current[rank]};
    const bool in_order = std::find(currents.begin(), currents.end(), current) != currents.end();
    if (!in_order && !placement.lane_per_rank) return {};  // not part of the capture
    streams[lane] = placement.lane_per_rank ? layout.lanes[lane]->stream.get() : current.stream;
  }
  return streams;
}

// Returns false if that is not possible; then nothing was enqueued.
bool EventsEngine::run_by_flags(const Schedule& schedule, const std::vector<Table>& tables, const Placement& placement,
                                const CallLanes& call) {
  const std::vector<cudaStream_t> streams = streams_of(placement, call, call.currents);
  if (streams.empty() || !SignalledCall::may_serve(schedule, call)) return false;
  LaneSignals& signals = signals_.of(call.lanes, streams);
  auto flags = SignalledCall::of(schedule, tables, signals.steps(schedule, call.lane_of_rank),
                                 SignalledCall::blocks_at_once(call.lanes));
  if (!flags) return false;
  std::vector<Line> lines;
  for (size_t lane = 0; lane < streams.size(); ++lane) lines.emplace_back(call.lanes[lane]->device, streams[lane]);
  try {
    if (placement.lane_per_rank) before(call), fork(call);
    flags->launch(lines);
    if (placement.lane_per_rank) join(call), after(call);
  } catch (const std::exception&) {
    signals_.abort(signals);
    for (size_t lane = 0; lane < streams.size() && !call.capture; ++lane) {
      const DeviceGuard guard(call.lanes[lane]->device);
      cudaStreamSynchronize(streams[lane]);
    }
    cudaGetLastError();
    throw;
  }
  return true;
}

void EventsEngine::run(const Schedule& schedule, const std::vector<Table>& tables, const Placement& placement) {
  prove_peers(placement.device_of_rank, placement.current);
  std::lock_guard lock(mutex_);
  const RelaxedCapture relaxed;
  const CallLanes call = prepare(schedule, tables, placement);
  if (placement.by_flags && run_by_flags(schedule, tables, placement, call)) return;
  CallGraph* const graph = graphs_wanted() && !call.capture ? graph_of(schedule, tables, placement, call) : nullptr;
  try {
    before(call);
    graph ? replay(*graph, call) : enqueue(schedule, tables, call);
    after(call);
  } catch (const std::exception& error) {
    // Half of the call may be running. Wait, so that nothing works on the tensors when the error is raised.
    if (!call.capture)
      for (Lane* lane : call.lanes) lane->synchronize();
    cudaGetLastError();
    graphs_.give_up(graph, error.what());
    throw;
  }
}

}  // namespace

void run_events(const Schedule& schedule, const std::vector<Table>& tables, const Placement& placement) {
  static auto* const engine = new EventsEngine;  // never destroyed: CUDA may be gone before it
  engine->run(schedule, tables, placement);
}

}  // namespace fastreduce
