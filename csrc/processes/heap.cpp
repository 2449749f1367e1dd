#include "processes/heap.h"

#include <ATen/ops/from_blob.h>

namespace fastreduce {

Heap& Heap::instance() {
  static Heap* heap = new Heap;  // never destroyed: tensors may outlive everything else
  return *heap;
}

at::Tensor Heap::allocate(at::IntArrayRef sizes, at::ScalarType type) {
  const size_t bytes = c10::multiply_integers(sizes) * at::elementSize(type);
  const auto options = at::TensorOptions().dtype(type);
  if (bytes == 0) return at::from_blob(nullptr, sizes, options);
  SharedMemory* memory = take(bytes);
  return at::from_blob(memory->data(), sizes, [this, memory](void*) { give_back(memory); }, options);
}

std::optional<Heap::Place> Heap::find(const void* data, size_t bytes) {
  const auto* begin = static_cast<const std::byte*>(data);
  const std::lock_guard lock(mutex_);
  auto after = all_.upper_bound(begin);
  if (after == all_.begin()) return std::nullopt;
  const SharedMemory& memory = *std::prev(after)->second;
  if (begin + bytes > memory.data() + memory.bytes()) return std::nullopt;
  return Place{memory.address(), static_cast<uint64_t>(begin - memory.data())};
}

SharedMemory* Heap::take(size_t bytes) {
  const std::lock_guard lock(mutex_);
  // Not more than twice what is needed: a small tensor must not keep the memory of a large one from the next.
  if (const auto found = free_.lower_bound(bytes); found != free_.end() && found->first <= 2 * bytes) {
    SharedMemory* memory = found->second;
    free_.erase(found);
    return memory;
  }
  auto made = std::make_unique<SharedMemory>(SharedMemory::create((bytes + 4095) / 4096 * 4096));
  SharedMemory* memory = made.get();
  all_[memory->data()] = std::move(made);
  return memory;
}

void Heap::give_back(const SharedMemory* memory) {
  const std::lock_guard lock(mutex_);
  free_.emplace(memory->bytes(), all_[memory->data()].get());
}

}  // namespace fastreduce
