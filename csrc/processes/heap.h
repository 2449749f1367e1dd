// Tensors in memory that peers can reach: collectives work on them without copies.
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

// A process has one heap, since groups come and go and a tensor may be used in several. A segment is a piece of shared
// memory, which takes a file descriptor; processes have few of these, so small tensors share segments, and each large
// tensor has one.
// The memory of tensors that are gone serves later ones. Segments of large tensors go back to the machine where
// otherwise all of them together would have more than twice the bytes that large tensors have ever had at one time. So
// a tensor that grows does not keep the memory of all its former lengths, while tensors that take turns keep theirs.
// Where a peer still has such a segment mapped, it has addresses without memory. A forked process begins a new heap:
// otherwise parent and child would give the same free memory to tensors of both. What the child writes to its tensors
// is its own from then on. It may still see what the parent writes, where it has written nothing itself.
class Heap {
 public:
  struct PeerAddress {
    SharedMemory::Address memory;
    uint64_t offset;
  };

  static Heap& instance();

  // Uninitialised, contiguous, on the CPU.
  at::Tensor allocate(at::IntArrayRef sizes, at::ScalarType type);
  // The address by which peers find these bytes; none if they are not in this heap.
  std::optional<PeerAddress> find(const void* data, size_t bytes);
  // After a call has failed: the memory of this tensor is not used for another one, since a peer that was only late may
  // still read and write it.
  void abandon(const void* data);
  // Pins all memory of this heap, also what it takes later: tensors are copied from and to GPUs.
  void pin();

 private:
  struct Block {
    std::byte* data;
    size_t bytes;
  };
  struct Free {
    std::byte* data;
    uint64_t since;  // how many blocks had been given back by then
  };
  Block take(size_t bytes);
  void give_back(Block block);
  std::byte* segment(size_t bytes);
  bool fills_its_segment(const Block& block) const;
  void count_used(const Block& block);
  void make_room(size_t bytes);
  void keep_apart();

  std::mutex mutex_;
  bool pinned_ = false;
  std::map<const std::byte*, SharedMemory> segments_;  // by where they begin
  std::multimap<size_t, Free> free_;                   // blocks by bytes
  uint64_t given_back_ = 0;
  std::set<const std::byte*> abandoned_;                          // addresses within blocks
  size_t held_bytes_ = 0, used_bytes_ = 0, most_used_bytes_ = 0;  // of blocks that fill their segments
  Block rest_{nullptr, 0};                                        // of the last segment for small tensors
};

}  // namespace fastreduce
