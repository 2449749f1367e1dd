// How one process tells others that a counter of its has moved.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

namespace fastreduce {

// Each rank has a bell in its shared memory. Peers that wait for a counter of that rank sleep until its bell rings.
struct Bell {
  std::atomic<uint32_t> rings{0};
  std::atomic<uint32_t> sleepers{0};

  // Called after the counter has moved. The counter's store and this load are sequentially consistent, and so are the
  // sleeper's increment and its last look at the counter: either the sleeper sees that the counter has moved, or this
  // sees the sleeper.
  void ring() {
    if (sleepers.load(std::memory_order_seq_cst) > 0) wake();
  }

  // Returns when `moved()` is true, when the bell has rung, or after `most`, whichever comes first.
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
