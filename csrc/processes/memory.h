// Memory that several processes share.
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

// The memory has no name in any file system: peers open it through its owner's entry in /proc, which the kernel allows
// only to processes of the same user. It is freed with the last process that has it mapped, however that process ends.
// Its size is sealed, so that no peer can shrink it under another one's reads.
class SharedMemory {
 public:
  // Where a peer finds it. The inode tells it from other memory that has since been given the same file descriptor.
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

  // Memory filled with zeros. Throws std::system_error if the machine has too little memory left.
  static SharedMemory create(size_t bytes);
  // Throws std::system_error if it cannot be opened, std::runtime_error if it is not what the address says.
  static SharedMemory open(const Address& address);

  // Called by the owner, who needs it no longer: gives the memory back to the machine, even if peers have it mapped.
  void discard();

  // Called in a process that was forked from the owner: from now on nobody else sees what this process writes there.
  void make_private();

  std::byte* data() const { return data_; }
  size_t bytes() const { return address_.bytes; }
  const Address& address() const { return address_; }

 private:
  static SharedMemory map(int fd, const Address& address);

  FileDescriptor fd_;  // the owner's, through which peers open the memory
  Address address_{};
  std::byte* data_ = nullptr;
};

}  // namespace fastreduce
