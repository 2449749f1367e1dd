// Calls of another backend, mostly Gloo's, as a group waits for them.
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

// The memory of contiguous tensors, whatever else torch knows about them: Gloo does not know all dtypes.
Tensors bytes_of(const Tensors& tensors);
at::Tensor memory_as(at::ScalarType type, const at::Tensor& tensor);

// Bytes that Gloo's threads write, perhaps after a call that has failed.
at::Tensor memory_of_gloo(int64_t bytes);

template <class T>
at::Tensor in_memory_of_gloo(const T& value) {
  at::Tensor bytes = memory_of_gloo(sizeof(value));
  std::memcpy(bytes.mutable_data_ptr(), &value, sizeof(value));
  return bytes;
}

// Says whether all have ended, and throws what one of them has thrown, before or after the time is up.
std::function<bool(std::chrono::milliseconds)> ending_of(Works works);

// Lets go of groups whose calls may never end. Gloo's destructor waits for them until their timeout, also where a peer
// that they need is gone: so another thread waits there, unless it is soon over.
void let_go(std::vector<c10::intrusive_ptr<c10d::Backend>> groups);

}  // namespace fastreduce
