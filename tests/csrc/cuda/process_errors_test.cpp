// Calls between virtual GPUs in which something goes wrong, and what the ranks say of it.
#include <atomic>

#include "virtual_process.h"

namespace processes_test {

// Rank 1 meets the others, and then leaves or does nothing: kernels that wait for it end, and errors say whom they
// waited for.
void one_stops(const Case& test, bool leaves, const std::string& words) {
  as_processes(test, [&](Process& process, const RankSchedule& rank_schedule, auto& all) {
    process.fill(0);
    process.call(rank_schedule, milliseconds(40'000));  // who has not met the others does nothing at once
    all.arrive_and_wait();
    if (process.group().rank() != 1) {
      try {
        process.call(rank_schedule, leaves ? milliseconds(5'000) : milliseconds(500));
        fail_at_once(test.where() + ": a call without rank 1 ended");
      } catch (const GroupError& error) {
        if (std::string(error.what()).find(words) == std::string::npos)
          fail_at_once(test.where() + ": found '" + error.what() + "', wanted " + words);
      }
    } else {
      Announcement mine = process.announcement();
      mine.at_once = true;
      process.group().agree(mine, milliseconds(40'000));
      if (leaves) process.group().leave();
    }
    all.arrive_and_wait();
  });
  expect_clean(test.where());
  ++cases;
}

// Where calls differ all ranks raise, and the next call is right: its kernels still wait for each other.
void calls_differ(const Case& test) {
  as_processes(test, [&](Process& process, const RankSchedule& rank_schedule, auto& all) {
    for (int round = 0; round < kRounds; ++round) {
      process.fill(round);
      all.arrive_and_wait();
      try {
        process.call(rank_schedule, milliseconds(40'000), process.group().rank());
        fail_at_once(test.where() + ": calls that differ were done");
      } catch (const GroupError& error) {
        if (std::string(error.what()).find("want the same call on all ranks") == std::string::npos)
          fail_at_once(test.where() + ": found '" + error.what() + "'");
      }
      if (!process.call(rank_schedule, milliseconds(40'000))) fail_at_once(test.where() + ": not reached");
      process.check(round);
      all.arrive_and_wait();
    }
  });
  expect_clean(test.where());
  ++cases;
}

// A GPU that does not say whether it has done its part of such a call may still be at it: nobody goes on. Who has not
// compared the calls yet may hear of that first.
void a_gpu_fails_where_calls_differ(const Case& test) {
  as_processes(test, [&](Process& process, const RankSchedule& rank_schedule, auto& all) {
    process.gpu_fails = true;
    process.fill(0);
    all.arrive_and_wait();
    const int rank = process.group().rank();
    if (rank == 0) virtual_cuda::fail_call("cudaStreamQuery", cudaErrorLaunchFailure, test.ranks() + 1);  // having met
    all.arrive_and_wait();
    for (const bool first : {true, false}) {
      std::string thrown;
      try {
        process.call(rank_schedule, milliseconds(40'000), rank);
      } catch (const GroupError& error) {
        thrown = error.what();
      }
      const bool differ = first && thrown.find("want the same call on all ranks") != std::string::npos;
      if (!differ && thrown.find("a call that differed: fastreduce: cudaStreamQuery failed") == std::string::npos)
        fail_at_once(test.where() + ": thrown where a GPU failed: '" + thrown + "'");
    }
    process.wait();
    all.arrive_and_wait();
  });
  virtual_cuda::forget_failures();
  expect_clean(test.where());
  ++cases;
}

// The rank whose GPU fails says so, and the other that it waited in vain.
void one_gpu_fails(const Case& test) {
  std::atomic<int> failed = 0;
  as_processes(test, [&](Process& process, const RankSchedule& rank_schedule, auto& all) {
    process.fill(0);
    all.arrive_and_wait();
    if (process.group().rank() == 0) virtual_cuda::fail_call("cudaStreamQuery", cudaErrorLaunchFailure);
    all.arrive_and_wait();
    try {
      process.call(rank_schedule, milliseconds(500));
    } catch (const std::runtime_error& error) {
      failed += std::string(error.what()).find("cudaStreamQuery failed: cudaErrorLaunchFailure") != std::string::npos;
    }
    all.arrive_and_wait();
  });
  virtual_cuda::forget_failures();
  if (failed != 1) fail_at_once(test.where() + ": " + std::to_string(failed) + " ranks told of the GPU's error");
  expect_clean(test.where());
  ++cases;
}

// A GPU without memory left shares none, and says why.
void no_memory_to_share() {
  virtual_cuda::fail_call("cudaMalloc", cudaErrorMemoryAllocation);
  const auto staging = make_staging(0, 0, 2);
  if (!staging->problem().starts_with("cudaMalloc: cudaErrorMemoryAllocation")) fail("found: " + staging->problem());
  if (staging->address().staging != DeviceHandle{}) fail("memory that is not there is shared");
  ++cases;
}

// What was enqueued before the error still works on its memory.
void a_mark_that_fails() {
  virtual_cuda::fail_call("cudaStreamSynchronize", cudaErrorLaunchFailure);
  std::string thrown;
  try {
    make_staging(0, 0, 2);
  } catch (const std::runtime_error& error) {
    thrown = error.what();
  }
  if (thrown.find("cudaStreamSynchronize failed") == std::string::npos) fail("a mark that fails: '" + thrown + "'");
  expect_clean("a mark that fails");
  ++cases;
}

}  // namespace processes_test
