// Memory for ranks that are threads of one process: all of them see it at one address, as ThreadSanitizer must in order
// to find what is not ordered. (Mapped several times, as processes do, it would take each mapping for other memory.)
#include <atomic>
#include <cstring>
#include <map>
#include <mutex>
#include <new>
#include <stdexcept>

#include "processes/memory.h"

#include <unistd.h>

namespace fastreduce {
namespace {

constexpr std::align_val_t kPage{4096};

std::mutex mutex;
std::map<uint64_t, std::byte*> made;  // by inode
int64_t last = 0;

}  // namespace

FileDescriptor::~FileDescriptor() {}  // numbers of ours that no system knows, and pidfds: few

SharedMemory::~SharedMemory() {
  if (fd_.get() < 0) return;
  const std::lock_guard lock(mutex);
  made.erase(address_.inode);
  operator delete(data_, kPage);
}

SharedMemory SharedMemory::create(size_t bytes) {
  SharedMemory memory;
  memory.data_ = static_cast<std::byte*>(std::memset(operator new(bytes, kPage), 0, bytes));
  const std::lock_guard lock(mutex);
  memory.fd_ = FileDescriptor(static_cast<int>(++last));
  memory.address_ = {getpid(), last, static_cast<uint64_t>(last), bytes};
  made[memory.address_.inode] = memory.data_;
  return memory;
}

SharedMemory SharedMemory::open(const Address& address) {
  SharedMemory memory;
  memory.address_ = address;
  const std::lock_guard lock(mutex);
  memory.data_ = made.at(address.inode);
  return memory;
}

}  // namespace fastreduce
