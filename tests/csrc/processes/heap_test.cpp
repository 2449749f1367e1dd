// Memory is made quick to reach from GPUs while another thread takes some: all of it, and each part once.
#include "processes/heap.h"

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstdio>
#include <thread>
#include <vector>

namespace {

constexpr int kTensors = 10;
constexpr int64_t kElems = 4 << 20;  // so many that each has memory of its own

std::vector<void*> pinned;  // under the heap's lock

void pin(std::byte* data, size_t) { pinned.push_back(data); }

std::vector<at::Tensor> take() {
  std::vector<at::Tensor> taken;
  for (int i = 0; i < kTensors; ++i) taken.push_back(fastreduce::Heap::instance().allocate({kElems}, at::kByte));
  return taken;
}

}  // namespace

int main() {
  fastreduce::pin_memory = pin;
  std::vector<at::Tensor> tensors = take(), later;
  std::thread other([&] { later = take(); });
  for (int times = 0; times < 2; ++times) fastreduce::Heap::instance().pin();
  other.join();
  tensors.insert(tensors.end(), later.begin(), later.end());
  for (const at::Tensor& tensor : tensors)
    if (std::count(pinned.begin(), pinned.end(), tensor.data_ptr()) != 1) return std::fputs("not once\n", stderr), 1;
}
