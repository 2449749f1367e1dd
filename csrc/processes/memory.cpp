#include "processes/memory.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>
#include <limits>
#include <stdexcept>
#include <string>
#include <system_error>

namespace fastreduce {
namespace {

constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

[[noreturn]] void fail(int error, const std::string& what) {
  throw std::system_error(error, std::generic_category(), what);
}

uint64_t inode_of(int fd, uint64_t bytes, const std::string& name) {
  struct stat found{};
  if (fstat(fd, &found) != 0) fail(errno, "cannot examine " + name);
  if (static_cast<uint64_t>(found.st_size) != bytes)
    throw std::runtime_error(name + " has " + std::to_string(found.st_size) + " bytes; want " + std::to_string(bytes));
  return found.st_ino;
}

// A signal would interrupt the call, which then has taken nothing (EINTR), and a profiler's signals, which come all the
// time, would interrupt every attempt. So signals wait until it is done.
int take(int fd, size_t bytes) {
  sigset_t every, before;
  sigfillset(&every);
  pthread_sigmask(SIG_SETMASK, &every, &before);
  const int error = posix_fallocate(fd, 0, static_cast<off_t>(bytes));
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return error;
}

size_t available_bytes() {
  std::ifstream lines("/proc/meminfo");
  std::string name, unit;
  for (size_t kilobytes = 0; lines >> name >> kilobytes; std::getline(lines, unit))
    if (name == "MemAvailable:") return kilobytes << 10;
  return std::numeric_limits<size_t>::max();
}

}  // namespace

FileDescriptor::~FileDescriptor() {
  if (fd_ >= 0) close(fd_);
}

SharedMemory::~SharedMemory() {
  if (data_) munmap(data_, address_.bytes);
}

SharedMemory SharedMemory::create(size_t bytes) {
  const std::string name = "shared memory of " + std::to_string(bytes) + " bytes";
  FileDescriptor fd(memfd_create("fastreduce", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (fd.get() < 0) fail(errno, "cannot make " + name);
  // The kernel would not refuse: it would end other processes to get the memory.
  if (const size_t left = available_bytes(); bytes > left)
    fail(ENOMEM, "cannot get " + name + ", of " + std::to_string(left) + " that the machine has available");
  // The memory is taken now: if it were missing later, the first write to it would end the process.
  if (const int error = take(fd.get(), bytes)) fail(error, "cannot get " + name);
  if (fcntl(fd.get(), F_ADD_SEALS, kSeals) != 0) fail(errno, "cannot seal " + name);
  const Address address{getpid(), fd.get(), inode_of(fd.get(), bytes, name), bytes};
  SharedMemory memory = map(fd.get(), address);
  memory.fd_ = std::move(fd);
  return memory;
}

SharedMemory SharedMemory::open(const Address& address) {
  const std::string path = "/proc/" + std::to_string(address.pid) + "/fd/" + std::to_string(address.fd);
  const std::string name = "the shared memory " + path;
  const FileDescriptor fd(::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NONBLOCK));
  if (fd.get() < 0) fail(errno, "cannot open " + name);
  const int seals = fcntl(fd.get(), F_GET_SEALS);
  if (seals < 0 || (seals & kSeals) != kSeals || inode_of(fd.get(), address.bytes, name) != address.inode)
    throw std::runtime_error(name + " is not what its owner announced");
  return map(fd.get(), address);
}

// Where the kernel cannot, the memory is gone with the last process that has it mapped.
void SharedMemory::discard() {
  const SharedMemory gone = std::move(*this);
  fallocate(gone.fd_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, static_cast<off_t>(gone.bytes()));
}

// Pages are copied when they are first written, as those of a fork are. Should the kernel refuse, they stay shared.
void SharedMemory::make_private() {
  mmap(data_, address_.bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED | MAP_NORESERVE, fd_.get(), 0);
}

SharedMemory SharedMemory::map(int fd, const Address& address) {
  void* data = mmap(nullptr, address.bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
  if (data == MAP_FAILED) fail(errno, "cannot map shared memory of " + std::to_string(address.bytes) + " bytes");
  SharedMemory memory;
  memory.address_ = address;
  memory.data_ = static_cast<std::byte*>(data);
  return memory;
}

}  // namespace fastreduce
