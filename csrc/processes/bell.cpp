#include "processes/bell.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>

namespace fastreduce {

void Bell::wake() {
  rings.fetch_add(1, std::memory_order_release);
  syscall(SYS_futex, &rings, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

void Bell::wait(uint32_t heard, std::chrono::milliseconds most) {
  const timespec timeout{most.count() / 1000, most.count() % 1000 * 1'000'000};
  syscall(SYS_futex, &rings, FUTEX_WAIT, heard, &timeout, nullptr, 0);
}

}  // namespace fastreduce
