// Shared memory on a kernel that lets any signal end the call which takes it.
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <exception>

#include "processes/memory.h"

namespace {

bool blocked(int signal) {
  sigset_t now;
  pthread_sigmask(SIG_SETMASK, nullptr, &now);
  return sigismember(&now, signal) == 1;
}

}  // namespace

extern "C" int posix_fallocate(int fd, off_t offset, off_t bytes) {
  return blocked(SIGPROF) && blocked(SIGALRM) ? ftruncate(fd, offset + bytes) : EINTR;
}

int main() {
  try {
    const auto memory = fastreduce::SharedMemory::create(8192);
    if (memory.bytes() != 8192 || memory.data()[8191] != std::byte(0)) return std::fputs("not the memory\n", stderr), 1;
    if (blocked(SIGPROF)) return std::fputs("signals stay blocked\n", stderr), 1;
  } catch (const std::exception& error) {
    return std::fprintf(stderr, "%s\n", error.what()), 1;
  }
}
