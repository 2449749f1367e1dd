// Calls that another backend does for a group, mostly Gloo, and how the group waits for them.
#pragma once

#include <chrono>
#include <cstring>
#include <functional>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

#include "processes/items.h"

namespace fastreduce {

using Works = std::vector<c10::intrusive_ptr<c10d::Work>>;

// Contiguous tensors as tensors of bytes over the same memory, since Gloo does not know all dtypes.
Tensors bytes_of(const Tensors& tensors);
at::Tensor memory_as(at::ScalarType type, const at::Tensor& tensor);

// Memory that Gloo's threads may write, even after a call has failed.
at::Tensor memory_of_gloo(int64_t bytes);

template <class T>
at::Tensor in_memory_of_gloo(const T& value) {
  at::Tensor bytes = memory_of_gloo(sizeof(value));
  std::memcpy(bytes.mutable_data_ptr(), &value, sizeof(value));
  return bytes;
}

// A function that waits for all of them, at most for the given time, and says whether they have ended. It throws what
// one of them has thrown.
std::function<bool(std::chrono::milliseconds)> ending_of(Works works);

// Destroys groups whose calls may never end. Gloo's destructor waits for such calls until their timeout, even if a peer
// that they need is gone. Where that takes long, another thread waits there instead of this one.
void let_go(std::vector<c10::intrusive_ptr<c10d::Backend>> groups);

}  // namespace fastreduce
