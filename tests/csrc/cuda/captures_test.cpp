// A capture in which every device's current stream takes part, as the page on CUDA describes it: the user synchronizes
// nothing by hand.
#include "cases.h"

namespace engines_test {
namespace {

// `later` waits for what is on `earlier` now.
void follow(int later_device, cudaStream_t later, int earlier_device, cudaStream_t earlier,
            std::vector<Event>& events) {
  const DeviceGuard guard(earlier_device);
  const Event& event = events.emplace_back(make_event());
  cuda_check(cudaEventRecord(event.get(), earlier), "cudaEventRecord");
  const DeviceGuard there(later_device);
  cuda_check(cudaStreamWaitEvent(later, event.get(), 0), "cudaStreamWaitEvent");
}

void capture_on_all_devices(const Named& named) {
  const int ranks = named.program.ranks;
  Machine machine(ranks, {.devices = ranks, .slices = 2});
  std::vector<cudaStream_t>& current = machine.placement.current;
  std::vector<Stream> streams;  // default streams cannot be captured
  for (int device = 0; device < ranks; ++device) {
    const DeviceGuard guard(device);
    current[device] = streams.emplace_back(make_stream()).get();
  }
  const Content content(named, kSum, Data::exact, {500}, {0, 0});
  const Buffers buffers(content, machine.placement);
  run_events(named.program, buffers.tables(), machine.placement);  // proves the peers
  synchronize(ranks);
  std::vector<Event> events;
  const Captured graph(current[0], cudaStreamCaptureModeGlobal, [&] {
    for (int device = 1; device < ranks; ++device) follow(device, current[device], 0, current[0], events);
    for (int times = 0; times < 2; ++times) {
      buffers.fill();
      run_events(named.program, buffers.tables(), machine.placement);
      buffers.collect();
    }
    for (int device = 1; device < ranks; ++device) follow(0, current[0], device, current[device], events);
  });
  const DeviceGuard guard(0);
  for (int times = 0; times < 2; ++times) graph.launch(current[0]);
  cuda_check(cudaStreamSynchronize(current[0]), "cudaStreamSynchronize");
  buffers.expect_reduced("captured on all devices, " + named.where());
  expect_clean("captured on all devices, " + named.where());
  ++cases;
}

}  // namespace

// A call of which nothing was captured yet when it failed leaves the capture, and the call before it, whole.
void a_call_that_fails_in_a_capture() {
  const Case one{program_of("sharded", 2), kSum, {500}, {0, 0}, {.devices = 2}};
  const Machine machine(2, one.setting);
  const Content content = one.content();
  const Buffers buffers(content, machine.placement);
  const auto call = [&] { run_events(one.named.program, buffers.tables(), machine.placement); };
  call();  // proves the peers
  buffers.fill();
  synchronize(2);
  const cudaStream_t stream = machine.placement.current[0];
  bool thrown = false;
  const Captured graph(stream, cudaStreamCaptureModeThreadLocal, [&] {
    call();
    virtual_cuda::fail_call("cudaEventRecord", cudaErrorUnknown);
    try {
      call();
    } catch (const std::runtime_error&) {
      thrown = true;
    }
  });
  if (!thrown) fail("control: the second call in a capture did not fail");
  graph.launch(stream);
  synchronize(2);
  buffers.collect();
  synchronize(2);
  buffers.expect_reduced("before a call that failed in a capture");
  expect_clean("before a call that failed in a capture");
  ++cases;
}

// Beside a stream that waits for the default one of its device, that default stream may not even be asked about. On
// another device it may, and is the current one there, whichever rank that is.
void a_capture_on_a_blocking_stream(int device, bool first) {
  const Case one{program_of("sharded", 2), kSum, {500}, {0, 0}, {.devices = 2}};
  Machine machine(2, one.setting);
  const DeviceGuard guard(device);
  cudaStream_t blocking;
  cuda_check(cudaStreamCreateWithFlags(&blocking, cudaStreamDefault), "cudaStreamCreateWithFlags");
  const Stream stream(blocking);
  machine.placement.device_of_rank = {device, 1 - device};
  machine.placement.current = {blocking, nullptr};
  if (!first) {
    std::swap(machine.placement.device_of_rank[0], machine.placement.device_of_rank[1]);
    std::swap(machine.placement.current[0], machine.placement.current[1]);
  }
  const Content content = one.content();
  const Buffers buffers(content, machine.placement);
  const auto call = [&] { run_events(one.named.program, buffers.tables(), machine.placement); };
  call();  // proves the peers
  buffers.fill();
  synchronize(2);
  const Captured graph(blocking, cudaStreamCaptureModeThreadLocal, call);
  graph.launch(blocking);
  synchronize(2);
  buffers.collect();
  synchronize(2);
  buffers.expect_reduced("captured on a blocking stream");
  expect_clean("captured on a blocking stream");
  ++cases;
}

void captures_on_all_devices() { for_each_program({2, 3}, capture_on_all_devices); }

}  // namespace engines_test
