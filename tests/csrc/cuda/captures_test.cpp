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

void captures_on_all_devices() { for_each_program({2, 3}, capture_on_all_devices); }

}  // namespace engines_test
