// What engine.cpp makes of torch's devices and streams: placement_test PROGRAMS NVML FOLDER place|run
#include <ATen/cuda/PeerToPeerAccess.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <dlfcn.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <optional>

#include "cases.h"
#include "cuda/peers.h"
#include "engine.h"

using namespace engines_test;
using c10::cuda::current_streams;
using c10::cuda::guarded_devices;

namespace {

Engine& engine() { return *find_engine(c10::kCUDA); }

Devices devices_of(const std::vector<int>& indices) {
  Devices devices;
  for (int index : indices) devices.emplace_back(c10::kCUDA, static_cast<c10::DeviceIndex>(index));
  return devices;
}

std::string text_of(const std::vector<int>& numbers) {
  std::string text;
  for (int number : numbers) text += std::to_string(number) + " ";
  return text;
}

void expect_guarded(int device, const std::string& where) {
  if (guarded_devices != std::vector{device}) fail(where + ": guarded " + text_of(guarded_devices));
  guarded_devices.clear();
}

void expect_place(const std::vector<int>& indices, const std::string& wanted) {
  guarded_devices.clear();
  const std::string found = engine().place(devices_of(indices));
  if (found != wanted) fail("devices " + text_of(indices) + "are at " + found + ", not " + wanted);
  expect_guarded(indices.front(), "place of " + text_of(indices));
  ++cases;
}

void expect_connected(std::vector<std::pair<int, int>> wanted) {
  auto& found = at::cuda::connected_pairs;
  std::sort(found.begin(), found.end());
  if (found != wanted) fail("torch was asked to connect " + std::to_string(found.size()) + " other pairs");
  found.clear();
}

int asked_for_the_folder = 0;

void expect_proofs_of_three(const std::filesystem::path& folder) {
  std::ifstream proofs(folder / "peer_access.txt");
  if (asked_for_the_folder != 1 || std::count(std::istreambuf_iterator<char>(proofs), {}, '\n') != 6)
    fail("the proofs of three devices are not in the cache's folder");
}

// By NVML, 0 and 1, and 1 and 2 have NVLink between them.
void places(const std::filesystem::path& folder) {
  expect_place({2}, "gpu");
  expect_place({3, 3}, "gpu");
  if (asked_for_the_folder != 0) fail("one device needs no proofs");
  expect_connected({});
  expect_place({0, 1}, "nvlink");
  expect_connected({{0, 1}, {1, 0}});
  expect_place({1, 2, 1}, "nvlink");
  expect_place({0, 2}, "pcie");
  expect_place({2, 1, 0}, "pcie");
  expect_connected({{0, 2}, {1, 2}, {2, 0}, {2, 1}});
  expect_proofs_of_three(folder);
}

// What a call hands to the devices shows which engine served it.
using Serves = bool (*)(const virtual_cuda::Traffic&);
bool by_tiles(const virtual_cuda::Traffic& t) { return t.kernels == 1 && t.copies == 0; }
bool by_lanes(const virtual_cuda::Traffic& t) { return t.kernels > 3; }
bool by_events(const virtual_cuda::Traffic& t) { return t.waits > 0; }
bool by_flags(const virtual_cuda::Traffic& t) { return t.kernels == 3 && t.waits == 0; }

// A ring of three ranks. Tensors are filled and collected on what torch says are the current streams, and nobody waits
// in between: work on any other stream is a race.
void expect_served(const Setting& setting, Serves serves) {
  const Case one{program_of("ring", 3), kSum, {1000}, {0, 0}, setting};
  const Machine machine(3, setting);
  const Content content = one.content();
  const Buffers buffers(content, machine.placement);
  const Devices devices = devices_of(machine.placement.device_of_rank);
  for (const auto& [device, stream] : machine.streams) current_streams[device] = stream.get();
  lane_per_rank = setting.lane_per_rank;
  guarded_devices.clear();
  engine().run(devices, one.named.program, buffers.tables(), setting.by_flags);  // proves the peers
  expect_guarded(0, one.name());
  buffers.fill();
  virtual_cuda::take_traffic();
  engine().run(devices, one.named.program, buffers.tables(), setting.by_flags);
  if (!serves(virtual_cuda::take_traffic())) fail(one.name() + ": served by another engine");
  buffers.collect();
  synchronize(setting.devices);
  buffers.expect_reduced(one.name());
  expect_clean(one.name());
  const int64_t calls = virtual_cuda::calls_made();
  engine().run(devices, one.named.program, {}, setting.by_flags);
  if (virtual_cuda::calls_made() != calls) fail(one.name() + ": no tensors, and CUDA was called");
  lane_per_rank = false;
  current_streams.clear();
  ++cases;
}

constexpr int64_t kCopyBytes = 64;

// A copy between two GPUs, where the copy engine is to have copies from so many bytes on.
void expect_copies(const std::vector<int>& indices, CopyEngineBytes from_bytes, int wanted) {
  nvlink_copy_engine_bytes = from_bytes.nvlink;
  pcie_copy_engine_bytes = from_bytes.pcie;
  std::vector<DeviceMemory> memory;
  Table table{DType::u8, Op::sum, 1, {{0, kCopyBytes, 0}}, {}};
  for (int device : indices)
    table.pointers.push_back(static_cast<std::byte*>(memory.emplace_back(allocate_device(device, kCopyBytes)).get()));
  for (const char* how : {"enqueued", "recorded", "replayed"}) {
    virtual_cuda::take_traffic();
    engine().run(devices_of(indices), program_of("broadcast", 2).program, {table}, false);
    synchronize(4);
    const virtual_cuda::Traffic traffic = virtual_cuda::take_traffic();
    if (traffic.copies != wanted || traffic.kernels != 1 - wanted)
      fail("devices " + text_of(indices) + how + ": " + std::to_string(traffic.copies) + " copies by the copy engine");
  }
  expect_clean("copies on devices " + text_of(indices));
  ++cases;
}

// 0 and 1 have NVLink, 0 and 2 have not. Each call differs from the one before in one size only.
void copies() {
  constexpr int64_t never = kCopyBytes + 1;
  expect_copies({0, 1}, {never, never}, 0);
  expect_copies({0, 1}, {kCopyBytes, never}, 1);
  expect_copies({0, 1}, {never, never}, 0);
  expect_copies({0, 1}, {never, kCopyBytes}, 0);
  expect_copies({0, 2}, {never, never}, 0);
  expect_copies({0, 2}, {never, kCopyBytes}, 1);
  expect_copies({0, 2}, {never, never}, 0);
  expect_copies({0, 2}, {kCopyBytes, never}, 0);
}

void expect_flags(const std::vector<int>& indices, bool wanted) {
  if (engine().has_flags(devices_of(indices)) != wanted) fail("flags for ranks on devices " + text_of(indices));
  ++cases;
}

// Each device's own stream is current there; that of `captured` is part of a capture.
void expect_may_copy(const std::vector<int>& indices, std::optional<int> captured, bool wanted) {
  const Machine machine(4, {.devices = 4});
  std::vector<Stream> streams;
  for (int device = 0; device < 4; ++device) {
    const DeviceGuard guard(device);
    current_streams[device] = streams.emplace_back(make_stream()).get();
  }
  bool found = false;
  const auto ask = [&] { found = engine().may_copy(devices_of(indices)); };
  if (captured)
    const Captured graph(current_streams[*captured], cudaStreamCaptureModeGlobal, ask);
  else
    ask();
  if (found != wanted) fail("copies of tensors on devices " + text_of(indices));
  current_streams.clear();
  ++cases;
}

void calls() {
  expect_served({.devices = 1}, by_tiles);
  expect_served({.devices = 1, .lane_per_rank = true}, by_lanes);
  expect_served({.devices = 3}, by_events);
  expect_served({.devices = 3, .by_flags = true}, by_flags);
}

void questions() {
  expect_flags({1, 1}, false);
  expect_flags({1, 0}, true);
  expect_flags({1, 1, 2}, true);
  lane_per_rank = true;
  expect_flags({1, 1}, true);
  lane_per_rank = false;
  expect_may_copy({1, 1}, {}, true);
  expect_may_copy({1, 1}, 1, true);
  expect_may_copy({0, 1}, {}, true);
  expect_may_copy({0, 1}, 2, true);
  expect_may_copy({0, 1}, 1, false);
  expect_may_copy({0, 1, 2}, 0, false);
}

}  // namespace

int main(int, char** argv) {
  programs = read_programs(argv[1]);
  if (!dlopen(argv[2], RTLD_NOW)) fail(dlerror());
  cache_folder = [argv] { return ++asked_for_the_folder, std::string(argv[3]); };
  virtual_cuda::reset({.devices = 4, .max_delay_us = 20, .multiprocessors = 6, .blocks_wait = true});
  if (argv[4] == std::string("run")) {  // the first question about the devices is a call
    expect_served({.devices = 3}, by_events);
    expect_connected({{0, 1}, {0, 2}, {1, 0}, {1, 2}, {2, 0}, {2, 1}});
    expect_proofs_of_three(argv[3]);
  } else {
    places(argv[3]);
    calls();
    copies();
    questions();
  }
  expect_clean("at the end");
  std::printf("%d cases right\n", cases);
}
