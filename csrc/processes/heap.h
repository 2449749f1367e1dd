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
// serves later ones. Of large tensors it goes back to the machine where all would be more than twice of what such
// tensors had at one time: a tensor that grows does not keep the memory of all its lengths, and tensors that take turns
// keep theirs. Peers may still have it mapped, and then have addresses without memory.
// A forked process begins another: memory that is free here would be given to tensors of both. What it writes to its
// tensors is its own from then on; what its parent writes it may still see, where it has written nothing itself.
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
  struct Free {
    std::byte* data;
    uint64_t since;  // in blocks that were given back
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
  std::set<const std::byte*> abandoned_;                          // somewhere in a block
  size_t held_bytes_ = 0, used_bytes_ = 0, most_used_bytes_ = 0;  // of blocks that fill their segments
  Block rest_{nullptr, 0};                                        // of the last segment for small tensors
};

}  // namespace fastreduce
