#include <algorithm>

#include "runtime.h"

namespace virtual_cuda {

// The legacy stream waits for every blocking stream of its device: a captured one can never be done.
CUstream_st& Runtime::stream(cudaStream_t handle) {
  if (handle != nullptr && handle != cudaStreamLegacy) return streams.at(handle);
  CUstream_st& found = legacy.at(static_cast<size_t>(host_thread().device));
  for (const auto& capture : captures)
    for (const CUstream_st* captured : capture->streams)
      if (captured->device == found.device && captured->flags != cudaStreamNonBlocking)
        capture_error(*capture, cudaErrorStreamCaptureImplicit, "use of the legacy stream");
  return found;
}

void Runtime::submit(CUstream_st& stream, std::shared_ptr<const Work> work) {
  if (!stream.capture) {
    enqueue(*stream.queue, std::move(work));
    return;
  }
  Capture& capture = *stream.capture;
  require(!capture.invalid, cudaErrorStreamCaptureInvalidated);
  capture.graph->items.push_back({std::move(work), stream.frontier});
  stream.frontier = {static_cast<int>(capture.graph->items.size()) - 1};
}

namespace {

// A stream that waits for a captured event joins the capture, and waits there.
void wait_captured(Runtime& rt, CUstream_st& stream, const CUevent_st& event) {
  Capture& capture = *event.capture;
  require(!capture.ended, cudaErrorCapturedEvent);
  require(!capture.invalid, cudaErrorStreamCaptureInvalidated);
  if (stream.legacy)
    rt.capture_error(capture, cudaErrorStreamCaptureImplicit, "the legacy stream waits for a captured event");
  if (stream.capture && stream.capture != event.capture)
    rt.capture_error(capture, cudaErrorStreamCaptureMerge, "a stream of one capture waits for another");
  if (!stream.capture) {
    stream.capture = event.capture;
    capture.streams.push_back(&stream);
  }
  for (int node : event.frontier)
    if (std::find(stream.frontier.begin(), stream.frontier.end(), node) == stream.frontier.end())
      stream.frontier.push_back(node);
}

void wait_event(Runtime& rt, CUstream_st& stream, const CUevent_st& event) {
  if (event.capture) return wait_captured(rt, stream, event);
  if (!event.recorded) return;
  if (stream.capture)
    rt.capture_error(*stream.capture, cudaErrorStreamCaptureIsolation,
                     "a captured stream waits for an event recorded outside");
  rt.traffic.waits += event.device != stream.device;
  rt.enqueue(*stream.queue, nullptr, {event.node}, event.clock);
}

void record(Runtime& rt, CUevent_st& event, CUstream_st& stream) {
  require(event.device == stream.device, cudaErrorInvalidResourceHandle);
  if (stream.capture) {
    require(!stream.capture->invalid, cudaErrorStreamCaptureInvalidated);
    event.capture = stream.capture;
    event.frontier = stream.frontier;
    return;
  }
  event.capture = nullptr;
  event.node = rt.enqueue(*stream.queue, nullptr);
  event.clock = stream.queue->clock;
  event.recorded = true;
}

CUevent_st& event_outside(Runtime& rt, cudaEvent_t handle, const char* name) {
  CUevent_st& event = rt.events.at(handle);
  if (event.capture && !event.capture->ended)
    rt.capture_error(*event.capture, cudaErrorCapturedEvent, std::string(name) + " of a captured event");
  require(!event.capture, cudaErrorCapturedEvent);
  rt.not_while_capturing(name);
  return event;
}

}  // namespace
}  // namespace virtual_cuda

using namespace virtual_cuda;

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  return call("cudaStreamCreateWithFlags", [&](Runtime& rt) {
    require(flags <= cudaStreamNonBlocking, cudaErrorInvalidValue);
    const int device = host_thread().device;
    *stream = rt.streams.add({rt.new_queue(device), device, flags, false, nullptr, {}});
  });
}

cudaError_t cudaStreamDestroy(cudaStream_t handle) {
  auto body = [&](Runtime& rt) {
    CUstream_st& stream = rt.streams.at(handle);
    if (stream.capture) rt.leave_capture(stream);
    rt.retire(stream.queue);
    rt.streams.erase(handle);
  };
  return call("cudaStreamDestroy", body, body);
}

cudaError_t cudaStreamSynchronize(cudaStream_t handle) {
  return call("cudaStreamSynchronize", [&](Runtime& rt) {
    CUstream_st& stream = rt.stream(handle);
    rt.not_captured(stream, "cudaStreamSynchronize");
    rt.not_while_capturing("cudaStreamSynchronize");
    rt.wait_queue(*stream.queue);
    rt.forget_done();
  });
}

cudaError_t cudaStreamQuery(cudaStream_t handle) {
  return call("cudaStreamQuery", [&](Runtime& rt) {
    CUstream_st& stream = rt.stream(handle);
    rt.not_captured(stream, "cudaStreamQuery");
    rt.not_while_capturing("cudaStreamQuery");
    require(rt.is_done(stream.queue->last()), cudaErrorNotReady);
    rt.wait_queue(*stream.queue);
  });
}

// Other flags make a capture wait for an event from outside it, which is not modelled.
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags) {
  return call("cudaStreamWaitEvent", [&](Runtime& rt) {
    require(flags == 0, cudaErrorInvalidValue);
    wait_event(rt, rt.stream(stream), rt.events.at(event));
  });
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  return call("cudaEventCreateWithFlags", [&](Runtime& rt) {
    CUevent_st created;
    created.device = host_thread().device;
    created.flags = flags;
    *event = rt.events.add(std::move(created));
  });
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  auto body = [&](Runtime& rt) {
    rt.events.at(event);
    rt.events.erase(event);
  };
  return call("cudaEventDestroy", body, body);
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  return call("cudaEventRecord", [&](Runtime& rt) { record(rt, rt.events.at(event), rt.stream(stream)); });
}

cudaError_t cudaEventSynchronize(cudaEvent_t handle) {
  return call("cudaEventSynchronize", [&](Runtime& rt) {
    CUevent_st& event = event_outside(rt, handle, "cudaEventSynchronize");
    if (event.node != nullptr) rt.wait(event.node);
    join(rt.checker.host, event.clock);
    rt.forget_done();
  });
}

cudaError_t cudaEventQuery(cudaEvent_t handle) {
  return call("cudaEventQuery", [&](Runtime& rt) {
    CUevent_st& event = event_outside(rt, handle, "cudaEventQuery");
    require(rt.is_done(event.node), cudaErrorNotReady);
    join(rt.checker.host, event.clock);
  });
}

cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t start, cudaEvent_t end) {
  return call("cudaEventElapsedTime", [&](Runtime& rt) {
    auto time_ns = [&](cudaEvent_t handle) {
      CUevent_st& event = event_outside(rt, handle, "cudaEventElapsedTime");
      require(event.recorded && event.flags != cudaEventDisableTiming, cudaErrorInvalidResourceHandle);
      require(rt.is_done(event.node), cudaErrorNotReady);
      return event.node == nullptr ? event.time_ns : event.node->time_ns;
    };
    const int64_t from = time_ns(start);
    *ms = static_cast<float>(time_ns(end) - from) * 1e-6F;
  });
}
