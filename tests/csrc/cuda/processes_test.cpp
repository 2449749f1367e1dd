// The engine for processes on virtual GPUs, with threads as ranks. Small calls are one launch per rank, whose blocks
// wait for those of the other ranks; every block is a thread, so ThreadSanitizer sees whether they wait for enough.
#include <c10/core/StreamGuard.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <set>
#include <thread>

#include "virtual_guard.h"
#include "virtual_process.h"

namespace fastreduce {
void (*pin_memory)(std::byte* data, size_t bytes) = nullptr;
}

namespace {

using namespace processes_test;

constexpr int64_t kAtOnceElems = kAtOnceBytes / 4;

void run(const Case& test) {
  as_processes(test, [&](Process& process, const RankSchedule& rank_schedule, auto& all) {
    for (int round = 0; round < kRounds; ++round) {
      process.fill(round);
      all.arrive_and_wait();
      if (process.group().rank() == 0) virtual_cuda::take_traffic();
      all.arrive_and_wait();
      if (!process.call(rank_schedule, milliseconds(40'000))) fail_at_once(test.where() + ": not reached");
      all.arrive_and_wait();
      const bool at_once = process.group().rank() > 0 || virtual_cuda::take_traffic().kernels == test.ranks();
      // In the first round nobody knows before the ranks have met, and the first slice is copied in.
      if (process.group().rank() == 0 && round > 0 && at_once != test.at_once)
        fail_at_once(test.where() + (at_once ? ": done at once" : ": not done at once"));
      process.check(round);
    }
  });
  expect_clean(test.where());
  ++cases;
}

// Two ranks come to one GPU, of which each has a part. Where each was before, kernels waited for each other.
void ranks_meet_on_one_gpu(const Case& test) {
  constexpr int kDevices[][2] = {{7, 0}, {0, 8}, {7, 8}, {7, 0}};
  as_processes(test, [&](Process& process, const RankSchedule& rank_schedule, auto& all) {
    for (int round = 0; round < 8; ++round) {
      if (round % 2 == 0) process.move_to(kDevices[round / 2][process.group().rank()]);
      process.fill(round);
      all.arrive_and_wait();
      if (!process.call(rank_schedule, milliseconds(40'000))) fail_at_once(test.where() + ": not reached");
      process.check(round);
      all.arrive_and_wait();
    }
  });
  expect_clean(test.where());
  ++cases;
}

struct Warnings : c10::WarningHandler {
  void process(const c10::Warning& warning) override { words.push_back(warning.msg()); }
  std::vector<std::string> words;
};

// Without peer access that works nothing is written, and all ranks say so; the first warns. A first slice was copied in
// meanwhile.
void nobody_reaches(const Case& test, const std::string& why) {
  as_processes(test, [&](Process& process, const RankSchedule& rank_schedule, auto& all) {
    Warnings warnings;
    const c10::WarningUtils::WarningHandlerGuard guard(&warnings);
    process.fill(0);
    if (process.call(rank_schedule, milliseconds(40'000))) fail_at_once(test.where() + ": reached without peer access");
    process.wait();
    const bool warned = warnings.words.size() == 1 && warnings.words[0].find(why) != std::string::npos;
    if (process.group().rank() == 0 ? !warned : !warnings.words.empty())
      fail_at_once(test.where() + ": " + std::to_string(warnings.words.size()) + " warnings on rank " +
                   std::to_string(process.group().rank()));
    all.arrive_and_wait();
  });
  expect_clean(test.where());
  ++cases;
}

// Nothing is allocated that a captured stream would have to wait for.
void expect_refused_in_a_capture() {
  const Stream stream = make_stream();
  current_streams[0] = stream.get();
  const size_t before = virtual_cuda::allocated_bytes(0);
  const auto expect_thrown = [](const auto& make) {
    std::string thrown;
    try {
      make();
    } catch (const std::exception& error) {
      thrown = error.what();
    }
    if (thrown.find("a CUDA graph is being captured") == std::string::npos) fail("in a capture: '" + thrown + "'");
  };
  const Captured graph(stream.get(), cudaStreamCaptureModeGlobal, [&] {
    expect_thrown([] { make_staging(0, 0, 2); });
    for (bool waits : {true, false}) expect_thrown([&] { CallStream(c10::Device(c10::kCUDA, 0), waits); });
  });
  if (virtual_cuda::allocated_bytes(0) != before) fail("memory was allocated in a capture");
  current_streams.clear();
  ++cases;
}

// What cannot be pinned stays pageable, and no later launch is blamed for it. A capture goes on meanwhile.
void memory_is_pinned() {
  std::byte memory[64];
  const Stream stream = make_stream();
  const auto pinned = [] {
    const auto calls = virtual_cuda::calls();
    return std::count(calls.begin(), calls.end(), "cudaHostRegister");
  };
  const auto before = pinned();
  for (bool fails : {false, true}) {
    if (fails) virtual_cuda::fail_call("cudaHostRegister", cudaErrorMemoryAllocation);
    const Captured graph(stream.get(), cudaStreamCaptureModeGlobal, [&] { pin_memory(memory, sizeof(memory)); });
    if (pinned() != before + 1 + fails) fail("memory is not pinned");
    if (cudaPeekAtLastError() != cudaSuccess) fail("memory that cannot be pinned leaves an error behind");
    ++cases;
  }
}

// Threads whose current GPU is one on which this process has nothing pin memory, and end what two ranks have staged,
// while another thread captures. An error of a call there has no one to tell it to.
void groups_end_anywhere() {
  std::thread([] {
    cuda_check(cudaSetDevice(1), "cudaSetDevice");
    const Stream stream = make_stream();
    std::byte memory[64];
    std::unique_ptr<DeviceStaging> one = make_staging(1, 0, 2), other = make_staging(2, 1, 2);
    for (const auto* staging : {&one, &other})
      if (!(*staging)->open({one->address(), other->address()})) fail("two GPUs do not reach each other");
    const Captured graph(stream.get(), cudaStreamCaptureModeGlobal, [&] {
      std::thread([&] { pin_memory(memory, sizeof(memory)); }).join();
      std::thread([&] {
        virtual_cuda::fail_call("cudaIpcCloseMemHandle", cudaErrorInvalidValue);
        one.reset();
        other.reset();
        expect_clean("a group that ends in another thread");
      }).join();
    });
  }).join();
  if (virtual_cuda::contexts() != std::set{1, 2}) fail("a context was made on a GPU without tensors");
  ++cases;
}

// A thread whose current GPU is one on which this process has nothing makes an asynchronous call, and another such does
// it.
void asynchronous_calls_make_no_context() {
  std::thread([] {
    cuda_check(cudaSetDevice(1), "cudaSetDevice");
    const Stream stream = make_stream();
    std::optional<CallStream> call;
    std::thread([&] {
      current_streams[1] = stream.get();
      call.emplace(c10::Device(c10::kCUDA, 1), /*waits=*/false);
    }).join();
    std::thread([&] {
      const c10::StreamGuard guard(call->begin());
      call.reset();
    }).join();
  }).join();
  if (virtual_cuda::contexts() != std::set{1}) fail("a context was made on a GPU that no call is on");
  expect_clean("an asynchronous call");
  ++cases;
}

const Named& find(const std::vector<Named>& programs, const std::string& name, int ranks) {
  for (const Named& named : programs)
    if (named.name == name && named.program.ranks == ranks) return named;
  fail("no program " + name);
}

// Whether processes can run it: no part of the host, and no outputs that others write.
bool serves(const Named& named) {
  try {
    const std::shared_ptr<const Schedule> schedule(std::shared_ptr<void>(), &named.program);
    RankSchedule(schedule, 0);
    return !named.program.whole_tensors && named.program.ranks > 1 && named.program.ranks <= 4;
  } catch (const std::invalid_argument&) {
    return false;
  }
}

}  // namespace

int main(int count, char** arguments) {
  std::vector<std::vector<bool>> peers(9, std::vector<bool>(9, true));
  peers[3][4] = peers[4][3] = false;
  virtual_cuda::reset({.devices = 9,
                       .peers = peers,
                       .lies = {{.device = 5, .peer = 6, .writes = false, .reads = true}},
                       .max_delay_us = 20,
                       .multiprocessors = 90,
                       .gpus = {0, 1, 2, 3, 4, 5, 6, 7, 7},
                       .blocks_wait = true});
  make_staging = std::exchange(make_device_staging, make_known_staging);
  const std::vector<Named> programs = read_programs(arguments[1]);
  asynchronous_calls_make_no_context();  // these two before others make contexts
  groups_end_anywhere();
  expect_refused_in_a_capture();
  no_memory_to_share();
  a_mark_that_fails();
  memory_is_pinned();
  for (const Named& named : programs) {
    if (!serves(named) || (count > 2 && named.program.ranks != std::atoi(arguments[2]))) continue;
    run({named, {130}});
    run({named, {1, 300, 7}, true, named.program.ranks - 1});
  }
  const Named& sharded = find(programs, "sharded", 2);
  run({sharded, {kAtOnceElems}});
  run({sharded, {kAtOnceElems + 64}, false});
  run({sharded, std::vector<int64_t>(kMaxSignalTiles + 1, 3), false});  // a tile each
  run({sharded, {130}, false, -1, true});
  wait_on_shared_gpus = true;  // here it is one process, of which one call at a time may have kernels that wait
  run({sharded, {130}, false, -1, true});
  wait_on_shared_gpus = false;
  const Named& ring = find(programs, "ring", 3);
  run({ring, {130}});  // with a GPU that was in fewer calls than the others
  calls_differ({ring, {130}});
  calls_differ({ring, {kAtOnceElems * 3}, false});
  a_gpu_fails_where_calls_differ({sharded, {130}});
  ranks_meet_on_one_gpu({sharded, {130}});
  one_stops({ring, {130}}, true, "rank 1 has left the group");
  one_stops({ring, {130}}, false, "reached its timeout of 500 ms, waiting for the devices of all ranks");
  nobody_reaches({sharded, {130}, false, -1, false, 3}, "cudaIpcOpenMemHandle: ");
  nobody_reaches({sharded, {130}, false, -1, false, 5}, "reads wrong data from the memory of rank 1's GPU");
  one_gpu_fails({sharded, {kAtOnceElems * 3}, false});
  std::printf("%d cases right\n", cases);
}
