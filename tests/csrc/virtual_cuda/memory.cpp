#include "memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <new>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#endif

namespace virtual_cuda {
namespace {

constexpr size_t kPage = 4096;
constexpr size_t kGuard = 512;          // also the alignment of allocations
constexpr unsigned char kFresh = 0xcb;  // new memory is not zero
constexpr unsigned char kCanary = 0xc7;
constexpr size_t kAddresses = size_t{8} << 30;  // a range, most of it never backed by memory

size_t whole_pages(size_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }

// What lies round an allocation: [first page, begin) and [end, end of the last page).
struct Pages {
  uintptr_t begin, end;
  explicit Pages(const Allocation& a) : begin(a.begin - kGuard), end(begin + whole_pages(a.end - begin + kGuard)) {}
  void* data() const { return reinterpret_cast<void*>(begin); }
  size_t bytes() const { return end - begin; }
};

void guard(const Allocation& a, const Pages& pages) {
  auto fill = [](uintptr_t begin, uintptr_t end, unsigned char value) {
    std::memset(reinterpret_cast<void*>(begin), value, end - begin);
  };
  fill(pages.begin, a.begin, kCanary);
  fill(a.begin, a.end, kFresh);
  fill(a.end, pages.end, kCanary);
#ifdef __SANITIZE_ADDRESS__
  ASAN_POISON_MEMORY_REGION(pages.data(), kGuard);
  ASAN_POISON_MEMORY_REGION(reinterpret_cast<void*>(a.end), pages.end - a.end);
#endif
}

bool intact(const Allocation& a, const Pages& pages) {
#ifdef __SANITIZE_ADDRESS__
  ASAN_UNPOISON_MEMORY_REGION(pages.data(), pages.bytes());
#endif
  auto is_canary = [](unsigned char byte) { return byte == kCanary; };
  auto bytes = [](uintptr_t at) { return reinterpret_cast<const unsigned char*>(at); };
  return std::all_of(bytes(pages.begin), bytes(a.begin), is_canary) &&
         std::all_of(bytes(a.end), bytes(pages.end), is_canary);
}

}  // namespace

Memory::Memory(int devices, size_t bytes_per_device, bool reuse_addresses)
    : bytes_per_device_(bytes_per_device), reuse_addresses_(reuse_addresses) {
  for (int device = kHost; device < devices; ++device) {
    void* base = mmap(nullptr, kAddresses, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED) throw std::bad_alloc();
    const auto address = reinterpret_cast<uintptr_t>(base);
    arenas_.push_back({address, address, 0, {}});
  }
}

Memory::~Memory() {
  for (auto& [begin, allocation] : allocations_)
    if (!allocation.freed) release(allocation);
  for (Arena& arena : arenas_) munmap(reinterpret_cast<void*>(arena.base), kAddresses);
}

// Where what was freed last had as many pages, or behind all others.
uintptr_t Memory::begin_of_next(Arena& arena, size_t bytes) {
  const auto fits = [&](uintptr_t begin) {
    return Pages(allocations_.at(begin)).bytes() == whole_pages(bytes + kGuard + kGuard);
  };
  const auto found = std::find_if(arena.freed.rbegin(), arena.freed.rend(), fits);
  if (!reuse_addresses_ || found == arena.freed.rend()) return arena.next + kGuard;
  const uintptr_t begin = *found;
  arena.freed.erase(std::next(found).base());
  return begin;
}

void* Memory::allocate(int device, size_t bytes) {
  Arena& arena = arenas_[device + 1];
  const uintptr_t begin = begin_of_next(arena, bytes);
  const Allocation allocation{begin, begin + bytes, device, false};
  const Pages pages(allocation);
  const bool full = device != kHost && arena.allocated_bytes + bytes > bytes_per_device_;
  if (full || bytes > kAddresses || pages.end > arena.base + kAddresses) return nullptr;
  if (mprotect(pages.data(), pages.bytes(), PROT_READ | PROT_WRITE) != 0) return nullptr;
  guard(allocation, pages);
  arena.next = std::max(arena.next, pages.end);
  arena.allocated_bytes += bytes;
  allocations_[begin] = allocation;
  return reinterpret_cast<void*>(begin);
}

bool Memory::release(Allocation& allocation) {
  const Pages pages(allocation);
  const bool untouched = intact(allocation, pages);
  madvise(pages.data(), pages.bytes(), MADV_DONTNEED);
  mprotect(pages.data(), pages.bytes(), PROT_NONE);
  allocation.freed = true;
  Arena& arena = arenas_[allocation.device + 1];
  arena.allocated_bytes -= allocation.end - allocation.begin;
  arena.freed.push_back(allocation.begin);
  return untouched;
}

Allocation* Memory::find(uintptr_t address) {
  auto after = allocations_.upper_bound(address);
  if (after == allocations_.begin()) return nullptr;
  Allocation& candidate = std::prev(after)->second;
  return address < candidate.end ? &candidate : nullptr;
}

bool Memory::open_to(const Allocation& allocation, int device) const {
  if (!allocation.foreign || allocation.device == device) return true;
  if (*allocation.foreign == Foreign::pool) return pool_access.contains({allocation.device, device});
  return *allocation.foreign == Foreign::shared;
}

int Memory::device_of(uintptr_t address) const {
  for (size_t i = 0; i < arenas_.size(); ++i)
    if (arenas_[i].base <= address && address < arenas_[i].base + kAddresses) return static_cast<int>(i) - 1;
  return kNobody;
}

std::string Memory::describe(uintptr_t begin, uintptr_t end) {
  const int device = device_of(begin);
  const std::string where = device == kNobody ? "the process's memory"
                            : device == kHost ? "pinned memory"
                                              : "device " + std::to_string(device);
  const auto after = allocations_.upper_bound(begin);
  if (device == kNobody || after == allocations_.begin()) return std::to_string(end - begin) + " bytes of " + where;
  const Allocation& a = std::prev(after)->second;
  return "bytes " + std::to_string(begin - a.begin) + " to " + std::to_string(end - a.begin) + " of " +
         std::to_string(a.end - a.begin) + " on " + where;
}

}  // namespace virtual_cuda
