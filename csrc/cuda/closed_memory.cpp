#include "cuda/closed_memory.h"

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <map>

#include "cuda/driver.h"
#include "cuda/peers.h"

namespace fastreduce {
namespace {

struct Allocation {
  CUdeviceptr begin = 0;
  size_t bytes = 0;
  unsigned by_malloc = 0;  // else of a pool or mapped: what IPC handles of cudaMalloc's time do not cover
  CUmemoryPool pool = nullptr;
  bool holds(const std::byte* pointer) const { return reinterpret_cast<CUdeviceptr>(pointer) - begin < bytes; }
};

Allocation allocation_of(const std::byte* pointer) {
  static const auto ask =
      driver_function<CUresult (*)(unsigned, CUpointer_attribute*, void**, CUdeviceptr)>("cuPointerGetAttributes");
  Allocation found;
  CUpointer_attribute names[] = {CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, CU_POINTER_ATTRIBUTE_RANGE_SIZE,
                                 CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE};
  void* values[] = {&found.begin, &found.bytes, &found.by_malloc, &found.pool};
  driver_check(ask(4, names, values, reinterpret_cast<CUdeviceptr>(pointer)), "cuPointerGetAttributes");
  return found;
}

bool has_access(int device, const std::byte* pointer) {
  static const auto ask =
      driver_function<CUresult (*)(void*, CUpointer_attribute, CUdeviceptr)>("cuPointerGetAttribute");
  const DeviceGuard guard(device);  // it is the current device that is asked about
  unsigned long long flags = CU_POINTER_ATTRIBUTE_ACCESS_FLAG_NONE;
  driver_check(ask(&flags, CU_POINTER_ATTRIBUTE_ACCESS_FLAGS, reinterpret_cast<CUdeviceptr>(pointer)),
               "cuPointerGetAttribute");
  return flags == CU_POINTER_ATTRIBUTE_ACCESS_FLAG_READWRITE;
}

bool open_pool(int device, CUmemoryPool pool) {
  cudaMemAccessDesc access{};
  access.location.type = cudaMemLocationTypeDevice;
  access.location.id = device;
  access.flags = cudaMemAccessFlagsProtReadWrite;
  if (cudaMemPoolSetAccess(pool, &access, 1) == cudaSuccess) return true;
  cudaGetLastError();  // a pool that cannot be opened is no error: its data goes through the host
  return false;
}

// One call's questions.
class Questions {
 public:
  bool can_use(int device, const Allocation& allocation, const std::byte* pointer) {
    if (!allocation.pool) return has_access(device, pointer);
    const auto [known, is_new] = pools_.try_emplace({device, allocation.pool}, false);
    if (is_new) known->second = has_access(device, pointer) || open_pool(device, allocation.pool);
    return known->second;
  }

 private:
  std::map<std::pair<int, CUmemoryPool>, bool> pools_;
};

void warn_once(int device, int owner) {
  [[maybe_unused]] static const int once =
      std::fprintf(stderr,
                   "fastreduce: warning: device %d has no access to a tensor's memory on device %d, which cudaMalloc "
                   "did not allocate; its data goes through host memory, which is slower\n",
                   device, owner);
}

}  // namespace

ClosedBuffers closed_buffers(const Schedule& schedule, const std::vector<Table>& tables,
                             const std::vector<int>& device_of_rank) {
  ClosedBuffers closed;
  const std::set<int> devices(device_of_rank.begin(), device_of_rank.end());
  if (devices.size() == 1) return closed;
  Questions questions;
  std::vector<Allocation> last(schedule.buffers);  // the tensors of a rank mostly lie in one allocation
  const auto look_at = [&](int buffer, const std::byte* pointer) {
    if (!pointer || last[buffer].holds(pointer)) return;
    const Allocation& allocation = last[buffer] = allocation_of(pointer);
    const int owner = device_of_rank[buffer % schedule.ranks];
    if (allocation.by_malloc) return;
    for (int device : devices) {
      if (!can_reach(device, owner) || device == owner || questions.can_use(device, allocation, pointer)) continue;
      closed.insert({device, buffer});
      warn_once(device, owner);
    }
  };
  for (const Table& table : tables)
    for (const Row& row : table.rows)
      for (int buffer = 0; row.elems > 0 && buffer < schedule.buffers; ++buffer)
        look_at(buffer, table.pointers[row.first_pointer + buffer]);
  return closed;
}

}  // namespace fastreduce
