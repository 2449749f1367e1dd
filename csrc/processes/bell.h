// How one process tells others that a counter of its has moved.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

namespace fastreduce {

// Lies in shared memory, one for each rank. Whoever waits for a counter of that rank sleeps at its bell.
struct Bell {
  std::atomic<uint32_t> rings{0};
  std::atomic<uint32_t> sleepers{0};

  // After the counter has moved. The counter's store and this load, as the sleeper's increment and its last look at
  // the counter, are sequentially consistent: either the sleeper sees the counter moved, or this sees the sleeper.
  void ring() {
    if (sleepers.load(std::memory_order_seq_cst) > 0) wake();
  }

  // Returns when `moved()` is true, or it was rung, or after `most`, whichever is first.
  template <class Moved>
  void sleep(const Moved& moved, std::chrono::milliseconds most) {
    sleepers.fetch_add(1, std::memory_order_seq_cst);
    const uint32_t heard = rings.load(std::memory_order_acquire);
    if (!moved()) wait(heard, most);
    sleepers.fetch_sub(1, std::memory_order_release);
  }

 private:
  void wake();
  void wait(uint32_t heard, std::chrono::milliseconds most);
};

static_assert(std::atomic<uint32_t>::is_always_lock_free && std::atomic<uint64_t>::is_always_lock_free);

}  // namespace fastreduce
