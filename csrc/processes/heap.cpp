#include "processes/heap.h"

#include <ATen/ops/from_blob.h>
#include <c10/core/CPUAllocator.h>
#include <pthread.h>

#include <algorithm>
#include <bit>

#include "dtypes.h"

namespace fastreduce {
namespace {

constexpr size_t kSegmentBytes = 4 << 20;  // for small tensors together; predicted: few descriptors, little unused
constexpr size_t kPage = 4096;
constexpr size_t kLeastBytes = 64;  // so that tensors begin on cache lines

}  // namespace

void (*pin_memory)(std::byte* data, size_t bytes) = nullptr;

Heap& Heap::instance() {
  static Heap* heap = [] {
    // The lock is taken meanwhile, so that no thread is changing what the new process reads.
    pthread_atfork([] { heap->mutex_.lock(); }, [] { heap->mutex_.unlock(); }, [] {
      heap->keep_apart();
      heap = new Heap;
    });
    return new Heap;  // never destroyed: tensors may outlive everything else
  }();
  return *heap;
}

at::Tensor Heap::allocate(at::IntArrayRef sizes, at::ScalarType type) {
  for (const int64_t size : sizes) TORCH_CHECK_VALUE(size >= 0, "sizes are ", sizes, "; want none below 0");
  auto bytes = static_cast<int64_t>(at::elementSize(type));
  for (const int64_t size : sizes)
    TORCH_CHECK_VALUE(!__builtin_mul_overflow(bytes, size, &bytes), "sizes are ", sizes, ", and a tensor of ",
                      name_of(type), " with them would have 2^63 bytes or more; want fewer");
  const Block block = bytes == 0 ? Block{} : take(static_cast<size_t>(bytes));
  // `resize_` may make it larger, as any tensor: then it gets ordinary memory, which peers cannot reach.
  return at::for_blob(block.data, sizes)
      .deleter([this, block](void*) { give_back(block); })
      .options(at::TensorOptions().dtype(type))
      .resizeable_storage()
      .allocator(c10::GetCPUAllocator())
      .make_tensor();
}

std::optional<Heap::PeerAddress> Heap::find(const void* data, size_t bytes) {
  const auto* begin = static_cast<const std::byte*>(data);
  const std::lock_guard lock(mutex_);
  auto after = segments_.upper_bound(begin);
  if (after == segments_.begin()) return std::nullopt;
  const SharedMemory& memory = std::prev(after)->second;
  if (begin + bytes > memory.data() + memory.bytes()) return std::nullopt;
  return PeerAddress{memory.address(), static_cast<uint64_t>(begin - memory.data())};
}

void Heap::abandon(const void* data) {
  const std::lock_guard lock(mutex_);
  abandoned_.insert(static_cast<const std::byte*>(data));
}

void Heap::keep_apart() {
  for (auto& [data, memory] : segments_) memory.make_private();
}

void Heap::pin() {
  const std::lock_guard lock(mutex_);
  if (pinned_ || pin_memory == nullptr) return;
  for (const auto& [data, memory] : segments_) pin_memory(memory.data(), memory.bytes());
  pinned_ = true;
}

Heap::Block Heap::take(size_t bytes) {
  const bool small = bytes < kSegmentBytes / 2;
  const size_t wanted = small ? std::bit_ceil(std::max(bytes, kLeastBytes)) : (bytes + kPage - 1) / kPage * kPage;
  const std::lock_guard lock(mutex_);
  // A block may be at most twice as large: a small tensor must not take the memory that the next large one needs.
  if (const auto found = free_.lower_bound(wanted); found != free_.end() && found->first <= 2 * wanted) {
    const Block block{found->second.data, found->first};
    free_.erase(found);
    count_used(block);
    return block;
  }
  if (!small) {
    make_room(wanted);
    const Block block{segment(wanted), wanted};
    held_bytes_ += wanted;
    count_used(block);
    return block;
  }
  if (rest_.bytes < wanted) rest_ = {segment(kSegmentBytes), kSegmentBytes};
  const Block block{rest_.data, wanted};
  rest_ = {rest_.data + wanted, rest_.bytes - wanted};
  return block;
}

void Heap::give_back(Block block) {
  if (block.bytes == 0) return;
  if (this != &instance()) return;  // a tensor of the process that forked this one, in which a thread may hold the lock
  const std::lock_guard lock(mutex_);
  if (const auto found = abandoned_.lower_bound(block.data);
      found != abandoned_.end() && *found < block.data + block.bytes)
    return;
  if (fills_its_segment(block)) used_bytes_ -= block.bytes;
  free_.emplace(block.bytes, Free{block.data, ++given_back_});
}

bool Heap::fills_its_segment(const Block& block) const {
  const auto found = segments_.find(block.data);
  return found != segments_.end() && found->second.bytes() == block.bytes;
}

void Heap::count_used(const Block& block) {
  if (!fills_its_segment(block)) return;
  used_bytes_ += block.bytes;
  most_used_bytes_ = std::max(most_used_bytes_, used_bytes_);
}

// Frees segments before a new one is made. Those that have been unused for longest go first: they are the least likely
// to be used again.
void Heap::make_room(size_t bytes) {
  if (pinned_) return;  // GPUs have it mapped
  const size_t most = 2 * std::max(most_used_bytes_, used_bytes_ + bytes);
  while (held_bytes_ + bytes > most) {
    auto oldest = free_.end();
    for (auto one = free_.begin(); one != free_.end(); ++one)
      if (fills_its_segment({one->second.data, one->first}) &&
          (oldest == free_.end() || one->second.since < oldest->second.since))
        oldest = one;
    if (oldest == free_.end()) return;
    segments_.extract(oldest->second.data).mapped().discard();
    held_bytes_ -= oldest->first;
    free_.erase(oldest);
  }
}

std::byte* Heap::segment(size_t bytes) {
  SharedMemory made = SharedMemory::create(bytes);
  if (pinned_) pin_memory(made.data(), made.bytes());
  std::byte* data = made.data();
  segments_[data] = std::move(made);
  return data;
}

}  // namespace fastreduce
