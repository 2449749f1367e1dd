// Captures, and the graphs that come out of them.
#include <algorithm>

#include "runtime.h"

namespace virtual_cuda {

void Runtime::capture_error(Capture& capture, cudaError_t code, const std::string& why) {
  require(!capture.invalid, cudaErrorStreamCaptureInvalidated);
  capture.invalid = true;
  report("not allowed while capturing: " + why);
  throw Error{code};
}

// What cudaThreadExchangeStreamCaptureMode documents: a thread in relaxed mode is never forbidden,
// one in thread-local mode only by its own captures, one in global mode by global ones of others too.
void Runtime::not_while_capturing(const char* name) {
  const cudaStreamCaptureMode mode = host_thread().mode;
  if (mode == cudaStreamCaptureModeRelaxed) return;
  for (const auto& capture : captures) {
    const bool own = capture->thread == std::this_thread::get_id() && capture->mode != cudaStreamCaptureModeRelaxed;
    const bool global = mode == cudaStreamCaptureModeGlobal && capture->mode == cudaStreamCaptureModeGlobal;
    if (own || global) capture_error(*capture, cudaErrorStreamCaptureUnsupported, name);
  }
}

void Runtime::not_captured(CUstream_st& stream, const char* name) {
  if (!stream.capture) return;
  capture_error(*stream.capture, cudaErrorStreamCaptureUnsupported, std::string(name) + " of a captured stream");
}

void Runtime::end_capture(std::shared_ptr<Capture> capture) {
  capture->ended = true;
  for (CUstream_st* stream : capture->streams) {
    stream->capture = nullptr;
    stream->frontier.clear();
  }
  capture->streams.clear();
  std::erase(captures, capture);
}

void Runtime::leave_capture(CUstream_st& stream) {
  const auto capture = stream.capture;
  report("not allowed while capturing: cudaStreamDestroy of a captured stream");
  capture->invalid = true;
  std::erase(capture->streams, &stream);
  if (capture->origin != &stream) return;
  end_capture(capture);
  destroy_graph(capture->graph);
}

void Runtime::destroy_graph(CUgraph_st* graph) {
  for (CUgraphNode_st* node : graph->nodes) graph_nodes.erase(node);
  for (const auto& [handle, exec] : execs.all())
    if (exec->origin == graph) exec->origin = nullptr;
  release(graph->user_objects);
  graphs.erase(graph);
}

namespace {

// Every item must lead to the stream in which the capture began.
bool joined(const CUgraph_st& graph, std::vector<int> reached) {
  std::vector<bool> seen(graph.items.size());
  while (!reached.empty()) {
    const int item = reached.back();
    reached.pop_back();
    if (seen[item]) continue;
    seen[item] = true;
    const auto& after = graph.items[item].after;
    reached.insert(reached.end(), after.begin(), after.end());
  }
  return std::find(seen.begin(), seen.end(), false) == seen.end();
}

void begin_capture(Runtime& rt, CUstream_st& stream, cudaStreamCaptureMode mode) {
  require(!stream.legacy, cudaErrorStreamCaptureUnsupported);
  require(!stream.capture, cudaErrorIllegalState);
  static unsigned long long last_id = 0;
  stream.capture = std::make_shared<Capture>();
  stream.capture->id = last_id++;
  stream.capture->mode = mode;
  stream.capture->thread = std::this_thread::get_id();
  stream.capture->origin = &stream;
  stream.capture->graph = rt.graphs.add({});
  stream.capture->streams = {&stream};
  stream.frontier.clear();
  rt.captures.push_back(stream.capture);
}

CUgraph_st* finish_capture(Runtime& rt, CUstream_st& stream) {
  require(stream.capture != nullptr, cudaErrorIllegalState);
  const auto capture = stream.capture;
  require(capture->origin == &stream, cudaErrorStreamCaptureUnmatched);
  const bool same_thread = capture->thread == std::this_thread::get_id();
  require(same_thread || capture->mode == cudaStreamCaptureModeRelaxed, cudaErrorStreamCaptureWrongThread);
  const std::vector<int> frontier = stream.frontier;
  rt.end_capture(capture);
  const bool is_joined = joined(*capture->graph, frontier);
  if (!capture->invalid && is_joined) return capture->graph;
  rt.destroy_graph(capture->graph);
  throw Error{capture->invalid ? cudaErrorStreamCaptureInvalidated : cudaErrorStreamCaptureUnjoined};
}

// An item comes after the last of its lane anyway, so that the lanes' queues add no order.
std::vector<int> lanes_of(const std::vector<CUgraph_st::Item>& items) {
  std::vector<int> lane_of_item, last;
  for (int i = 0; i < static_cast<int>(items.size()); ++i) {
    const auto& after = items[i].after;
    const auto behind = [&](int item) { return std::find(after.begin(), after.end(), item) != after.end(); };
    auto lane = std::find_if(last.begin(), last.end(), behind);
    if (lane == last.end()) lane = last.insert(lane, i);
    *lane = i;
    lane_of_item.push_back(static_cast<int>(lane - last.begin()));
  }
  return lane_of_item;
}

void instantiate(Runtime& rt, CUgraphExec_st& exec, const CUgraph_st& graph) {
  exec.origin = &graph;
  exec.items = graph.items;
  rt.retain(exec.user_objects, graph.user_objects);
  exec.lane_of_item = lanes_of(graph.items);
  for (int lane : exec.lane_of_item)
    if (lane == static_cast<int>(exec.lanes.size())) exec.lanes.push_back(rt.new_queue(host_thread().device));
}

void launch_graph(Runtime& rt, CUgraphExec_st& exec, CUstream_st& stream) {
  if (stream.capture) {  // the items become part of the capture, one after the other
    for (const auto& item : exec.items) rt.submit(stream, item.work);
    rt.retain(stream.capture->graph->user_objects, exec.user_objects);
    return;
  }
  ++rt.graphs_launched;
  Node* start = rt.enqueue(*stream.queue, nullptr, {exec.last}, exec.clock);
  const Clock start_clock = stream.queue->clock;
  std::vector<Node*> nodes;
  std::vector<Clock> clocks;
  Clock all = start_clock;
  for (const auto& item : exec.items) {
    std::vector<Node*> after{start};
    Clock clock = start_clock;
    for (int i : item.after) {
      after.push_back(nodes[i]);
      join(clock, clocks[i]);
      rt.traffic.waits += exec.items[i].work->device != item.work->device;
    }
    Queue& lane = *exec.lanes[exec.lane_of_item[nodes.size()]];
    nodes.push_back(rt.enqueue(lane, item.work, std::move(after), clock));
    clocks.push_back(lane.clock);
    join(all, lane.clock);
  }
  exec.last = rt.enqueue(*stream.queue, nullptr, std::move(nodes), all);
  exec.clock = stream.queue->clock;
}

}  // namespace
}  // namespace virtual_cuda

using namespace virtual_cuda;

cudaError_t cudaStreamGetCaptureInfo(cudaStream_t handle, cudaStreamCaptureStatus* status, unsigned long long* id,
                                     cudaGraph_t* graph) {
  return call("cudaStreamGetCaptureInfo", [&](Runtime& rt) {
    const auto& capture = rt.stream(handle).capture;
    if (capture && !capture->invalid && id != nullptr) *id = capture->id;
    if (capture && !capture->invalid && graph != nullptr) *graph = capture->graph;
    *status = !capture           ? cudaStreamCaptureStatusNone
              : capture->invalid ? cudaStreamCaptureStatusInvalidated
                                 : cudaStreamCaptureStatusActive;
  });
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  return call("cudaStreamBeginCapture", [&](Runtime& rt) { begin_capture(rt, rt.stream(stream), mode); });
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  *graph = nullptr;
  return call("cudaStreamEndCapture", [&](Runtime& rt) { *graph = finish_capture(rt, rt.stream(stream)); },
              [&](Runtime& rt) { rt.destroy_graph(finish_capture(rt, rt.stream(stream))); });
}

cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  return call("cudaThreadExchangeStreamCaptureMode", [&](Runtime&) { std::swap(*mode, host_thread().mode); });
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph, unsigned long long flags) {
  return call("cudaGraphInstantiate", [&](Runtime& rt) {
    require(flags == 0, cudaErrorInvalidValue);  // other ways to launch it are not modelled
    CUgraphExec_st created;
    instantiate(rt, created, rt.graphs.at(graph));
    *exec = rt.execs.add(std::move(created));
  });
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) {
  return call("cudaGraphLaunch", [&](Runtime& rt) { launch_graph(rt, rt.execs.at(exec), rt.stream(stream)); });
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  auto body = [&](Runtime& rt) { rt.destroy_graph(&rt.graphs.at(graph)); };
  return call("cudaGraphDestroy", body, body);
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
  auto body = [&](Runtime& rt) {
    CUgraphExec_st& destroyed = rt.execs.at(exec);
    for (Queue* lane : destroyed.lanes) rt.retire(lane);
    rt.release_after(destroyed.last, std::move(destroyed.user_objects));
    rt.execs.erase(exec);
  };
  return call("cudaGraphExecDestroy", body, body);
}
