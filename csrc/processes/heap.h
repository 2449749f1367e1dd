// Tensors in memory that peers can reach: collectives use them where they are.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <mutex>
#include <optional>
#include <set>

#include "processes/memory.h"

namespace fastreduce {

// Makes memory quick to reach from GPUs. Set by builds with CUDA, while the extension is loaded.
extern void (*pin_memory)(std::byte* data, size_t bytes);

// One for the process: groups come and go, and one tensor may be used in several. Memory of tensors that are gone
// serves later ones; it is never given back before the process ends, so that peers may keep what they have mapped.
// A forked process begins another: memory that is free here would be given to tensors of both. What its tensors have is
// its own from then on, as all other memory.
// Small tensors share segments: each segment takes a file descriptor, of which processes have few.
class Heap {
 public:
  struct PeerAddress {
    SharedMemory::Address memory;
    uint64_t offset;
  };

  static Heap& instance();

  // Uninitialised, contiguous, on the CPU.
  at::Tensor allocate(at::IntArrayRef sizes, at::ScalarType type);
  // Where peers find these bytes; none if they are not of this heap.
  std::optional<PeerAddress> find(const void* data, size_t bytes);
  // After a call that failed: the memory of this tensor serves no other one, since a peer that was only late may still
  // read and write there.
  void abandon(const void* data);
  // All memory, from now on: tensors are copied from and to GPUs.
  void pin();

 private:
  struct Block {
    std::byte* data;
    size_t bytes;
  };
  Block take(size_t bytes);
  void give_back(Block block);
  std::byte* segment(size_t bytes);
  void keep_apart();

  std::mutex mutex_;
  bool pinned_ = false;
  std::map<const std::byte*, SharedMemory> segments_;  // by where they begin
  std::multimap<size_t, std::byte*> free_;             // blocks by bytes
  std::set<const std::byte*> abandoned_;               // somewhere in a block
  Block rest_{nullptr, 0};                             // of the last segment for small tensors
};

}  // namespace fastreduce
