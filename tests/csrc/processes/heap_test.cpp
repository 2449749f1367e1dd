// Memory is made quick to reach from GPUs while another thread takes some: all of it, and each part once. Then it
// stays.
#include "processes/heap.h"

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstdio>
#include <thread>
#include <vector>

namespace {

using fastreduce::Heap;

constexpr int kTensors = 10;
constexpr int64_t kElems = 4 << 20;  // so many that each has memory of its own

std::vector<void*> pinned;  // under the heap's lock

void pin(std::byte* data, size_t) { pinned.push_back(data); }

at::Tensor take(int64_t elems) { return Heap::instance().allocate({elems}, at::kByte); }

std::vector<at::Tensor> take_all() {
  std::vector<at::Tensor> taken;
  for (int i = 0; i < kTensors; ++i) taken.push_back(take(kElems));
  return taken;
}

}  // namespace

int main() {
  fastreduce::pin_memory = pin;
  std::vector<at::Tensor> tensors = take_all(), later;
  std::thread other([&] { later = take_all(); });
  for (int times = 0; times < 2; ++times) Heap::instance().pin();
  other.join();
  for (at::Tensor& tensor : later) tensors.push_back(std::move(tensor));
  for (const at::Tensor& tensor : tensors)
    if (std::count(pinned.begin(), pinned.end(), tensor.data_ptr()) != 1) return std::fputs("not once\n", stderr), 1;

  tensors.clear();
  for (int64_t elems = 3 * kElems; elems < 40 * kElems; elems = 2 * elems + 1) take(elems);
  for (const void* data : pinned)
    if (!Heap::instance().find(data, 1)) return std::fputs("given back\n", stderr), 1;
}
