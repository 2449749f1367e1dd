#include <algorithm>
#include <cstdlib>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>

#include "cuda/engines.h"
#include "cuda/enqueue.h"
#include "cuda/launch.h"
#include "cuda/peers.h"

namespace fastreduce {
namespace {

// The most graphs to keep. A training step repeats a few calls, and each graph holds a table of pointers.
constexpr size_t kMaxGraphs = 64;

bool graphs_wanted() {
  static const bool wanted = [] {
    const char* setting = std::getenv("FASTREDUCE_GRAPHS");
    return !setting || std::string(setting) != "0";
  }();
  return wanted;
}

int64_t rank_bytes(const std::vector<Table>& tables) {
  int64_t bytes = 0;
  for (const Table& table : tables)
    for (const Row& row : table.rows) bytes += row.elems * table.elem_bytes;
  return bytes;
}

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
  struct Cached {
    std::vector<uint64_t> key;
    GraphExec exec;  // empty until the second use
    bool uses_host;
  };
  // The lanes and streams of one call.
  struct CallLanes {
    CaptureId capture;  // the user's, if the call is captured
    std::vector<Lane*> lanes;
    std::vector<int> lane_of_rank;
    std::vector<Current> currents;  // if the call is captured, only the streams in that capture
    int slices;
    int64_t copy_engine_bytes;
    Lane& hub() const { return *lanes.front(); }
  };
  CallLanes prepare(const Schedule& schedule, const std::vector<Table>& tables, const Placement& placement);
  Lane& lane(int device, int index, CaptureId capture);
  bool enqueue(const Schedule& schedule, const std::vector<Table>& tables, const CallLanes& call);
  void replay(Cached& cached, const Schedule& schedule, const std::vector<Table>& tables, const CallLanes& call);
  void fork(const CallLanes& call);
  void join(const CallLanes& call);
  void before(const CallLanes& call);
  void after(const CallLanes& call);
  Cached& cached(std::vector<uint64_t> key, bool& is_new);
  void capture(Cached& cached, const Schedule& schedule, const std::vector<Table>& tables, const CallLanes& call);

  std::mutex mutex_;
  std::map<std::tuple<int, int, CaptureId>, std::unique_ptr<Lane>> lanes_;
  std::map<std::pair<int, cudaStream_t>, Event> ready_;
  std::list<Cached> graphs_;  // most recently used first
};

// A call that the user captures gets lanes that no other call uses, until the process ends. The user may replay the
// graph while another call runs, and both would otherwise write to the same staging memory.
Lane& EventsEngine::lane(int device, int index, CaptureId capture) {
  auto& lane = lanes_[{device, index, capture}];
  if (!lane) lane = std::make_unique<Lane>(device);
  return *lane;
}

EventsEngine::CallLanes EventsEngine::prepare(const Schedule& schedule, const std::vector<Table>& tables,
                                              const Placement& placement) {
  CallLanes call;
  call.slices = placement.slices > 0 ? placement.slices : schedule.slices(rank_bytes(tables));
  call.copy_engine_bytes = placement.copy_engine_bytes;
  std::vector<CaptureId> capture_of_rank;
  for (cudaStream_t stream : placement.current) {
    const CaptureId capture = capture_of_rank.emplace_back(capture_of(stream));
    if (capture && call.capture && capture != call.capture)
      throw std::invalid_argument(
          "fastreduce: the devices' current streams are captured into different CUDA graphs; "
          "capture them into one, by events, or make the call outside");
    if (capture) call.capture = capture;
  }
  for (int rank = 0; rank < schedule.ranks; ++rank) {
    const int device = placement.device_of_rank[rank];
    Lane* const own = &lane(device, placement.lane_per_rank ? rank : 0, call.capture);
    auto found = std::find(call.lanes.begin(), call.lanes.end(), own);
    if (found == call.lanes.end()) found = call.lanes.insert(found, own);
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

bool EventsEngine::enqueue(const Schedule& schedule, const std::vector<Table>& tables, const CallLanes& call) {
  fork(call);
  Enqueue enqueue(schedule, tables, call.lanes, call.lane_of_rank, call.slices, call.copy_engine_bytes);
  enqueue.run();
  join(call);
  return enqueue.uses_host();
}

EventsEngine::Cached& EventsEngine::cached(std::vector<uint64_t> key, bool& is_new) {
  const auto found = std::find_if(graphs_.begin(), graphs_.end(), [&](const Cached& c) { return c.key == key; });
  is_new = found == graphs_.end();
  if (is_new)
    graphs_.push_front({std::move(key), GraphExec(), false});
  else
    graphs_.splice(graphs_.begin(), graphs_, found);
  if (graphs_.size() > kMaxGraphs) graphs_.pop_back();
  return graphs_.front();
}

void EventsEngine::capture(Cached& cached, const Schedule& schedule, const std::vector<Table>& tables,
                           const CallLanes& call) {
  const cudaStream_t hub = call.hub().stream.get();
  cuda_check(cudaStreamBeginCapture(hub, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
  cudaGraph_t raw = nullptr;
  try {
    cached.uses_host = enqueue(schedule, tables, call);
  } catch (...) {
    cudaStreamEndCapture(hub, &raw);
    cudaGetLastError();
    const Graph broken(raw);
    throw;
  }
  cuda_check(cudaStreamEndCapture(hub, &raw), "cudaStreamEndCapture");
  const Graph graph(raw);
  cudaGraphExec_t exec;
  cuda_check(cudaGraphInstantiate(&exec, graph.get(), 0), "cudaGraphInstantiate");
  cached.exec = GraphExec(exec);
}

// Launching a graph orders it on the hub's stream only. If it uses the lanes' staging memory, it must also come after
// earlier work of the lanes and before later work.
void EventsEngine::replay(Cached& cached, const Schedule& schedule, const std::vector<Table>& tables,
                          const CallLanes& call) {
  const DeviceGuard guard(call.hub().device);
  if (!cached.exec.get()) capture(cached, schedule, tables, call);
  if (cached.uses_host) join(call);
  cuda_check(cudaGraphLaunch(cached.exec.get(), call.hub().stream.get()), "cudaGraphLaunch");
  if (cached.uses_host) fork(call);
}

std::vector<uint64_t> key_of(const Schedule& schedule, const std::vector<Table>& tables, const Placement& placement,
                             int slices) {
  std::vector<uint64_t> key{schedule.id, static_cast<uint64_t>(slices), placement.lane_per_rank};
  key.insert(key.end(), placement.device_of_rank.begin(), placement.device_of_rank.end());
  for (const Table& table : tables) {
    key.push_back(static_cast<uint64_t>(table.dtype) << 32 | static_cast<uint64_t>(table.op));
    for (const Row& row : table.rows) key.push_back(row.elems);
    for (std::byte* pointer : table.pointers) key.push_back(reinterpret_cast<uintptr_t>(pointer));
  }
  return key;
}

void EventsEngine::run(const Schedule& schedule, const std::vector<Table>& tables, const Placement& placement) {
  prove_peers(placement.device_of_rank, placement.current);
  std::lock_guard lock(mutex_);
  const RelaxedCapture relaxed;
  const CallLanes call = prepare(schedule, tables, placement);
  try {
    before(call);
    bool is_new = true;
    Cached* const entry =
        graphs_wanted() && !call.capture ? &cached(key_of(schedule, tables, placement, call.slices), is_new) : nullptr;
    if (is_new)
      enqueue(schedule, tables, call);
    else
      replay(*entry, schedule, tables, call);
    after(call);
  } catch (...) {
    // Half of the call may be running. Wait, so that nothing works on the tensors when the error is raised.
    if (!call.capture)
      for (Lane* lane : call.lanes) lane->synchronize();
    cudaGetLastError();
    throw;
  }
}

}  // namespace

void run_events(const Schedule& schedule, const std::vector<Table>& tables, const Placement& placement) {
  static auto* const engine = new EventsEngine;  // never destroyed: CUDA may be gone before it
  engine->run(schedule, tables, placement);
}

}  // namespace fastreduce
