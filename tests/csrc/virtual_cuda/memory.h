// Where pointers belong: every device, and the host's pinned memory, has its own range of addresses. What
// is freed is used again if that is asked for, else never between two resets. Canaries (poison under AddressSanitizer)
// lie round every allocation; freed memory cannot be touched.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "virtual_cuda.h"

namespace virtual_cuda {

constexpr int kHost = -1;    // pinned
constexpr int kNobody = -2;  // ordinary memory of the process, or none

struct Allocation {
  uintptr_t begin, end;
  int device;
  bool freed;
  std::optional<Foreign> foreign = {};  // nullopt: of cudaMalloc or cudaHostAlloc
};

class Memory {
 public:
  Memory(int devices, size_t bytes_per_device, bool reuse_addresses = false);
  ~Memory();
  Memory(const Memory&) = delete;

  void* allocate(int device, size_t bytes);                      // nullptr: no room
  bool release(Allocation& allocation);                          // false: what lies round it was overwritten
  Allocation* find(uintptr_t address);                           // live or freed
  bool open_to(const Allocation& allocation, int device) const;  // where peer access is enabled
  int device_of(uintptr_t address) const;
  size_t allocated_bytes(int device) const { return arenas_[device + 1].allocated_bytes; }
  std::string describe(uintptr_t begin, uintptr_t end);
  std::map<uintptr_t, Allocation>& all() { return allocations_; }

  std::set<std::pair<int, int>> pool_access;  // (device of the pool, other device)

 private:
  struct Arena {
    uintptr_t base, next;
    size_t allocated_bytes;
    std::vector<uintptr_t> freed;  // begins of allocations, the last freed behind
  };
  uintptr_t begin_of_next(Arena& arena, size_t bytes);
  size_t bytes_per_device_;
  bool reuse_addresses_;
  std::vector<Arena> arenas_;  // the host's, then the devices'
  std::map<uintptr_t, Allocation> allocations_;
};

}  // namespace virtual_cuda
