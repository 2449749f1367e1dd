// Memory that several processes see.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <utility>

namespace fastreduce {

class FileDescriptor {
 public:
  explicit FileDescriptor(int fd = -1) : fd_(fd) {}
  FileDescriptor(FileDescriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~FileDescriptor();
  int get() const { return fd_; }

 private:
  int fd_;
};

// It has no name in any file system: peers open it through its owner's entry in /proc, which the kernel allows to
// processes of the same user only. It is gone with the last process that has it, however that process ends, and its
// size is sealed, so that no peer can make a read beyond its end.
class SharedMemory {
 public:
  // Where a peer finds it. The inode tells it from other memory that has got the same number since.
  struct Address {
    int64_t pid;
    int64_t fd;
    uint64_t inode;
    uint64_t bytes;
  };

  SharedMemory() = default;
  SharedMemory(SharedMemory&& other) noexcept { *this = std::move(other); }
  SharedMemory& operator=(SharedMemory&& other) noexcept {
    std::swap(fd_, other.fd_);
    std::swap(address_, other.address_);
    std::swap(data_, other.data_);
    return *this;
  }
  ~SharedMemory();

  // Zeros. Throws std::system_error if the machine has not so much memory left.
  static SharedMemory create(size_t bytes);
  // Throws std::system_error if it cannot be opened, std::runtime_error if it is not what the address says.
  static SharedMemory open(const Address& address);

  // By its owner, who has no more use for it: the machine has its memory again, also where peers have it mapped.
  void discard();

  // In a process that was forked from its owner: what is written here is seen by nobody else from now on.
  void make_private();

  std::byte* data() const { return data_; }
  size_t bytes() const { return address_.bytes; }
  const Address& address() const { return address_; }

 private:
  static SharedMemory map(int fd, const Address& address);

  FileDescriptor fd_;  // of the owner: peers come through it
  Address address_{};
  std::byte* data_ = nullptr;
};

}  // namespace fastreduce
