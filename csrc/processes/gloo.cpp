#include "processes/gloo.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <future>
#include <system_error>
#include <thread>

namespace fastreduce {
namespace {

// How long this thread waits itself. A group that is not stuck ends at once (predicted), and then leaves no thread
// behind.
constexpr std::chrono::seconds kEndsSoon{1};

}  // namespace

at::Tensor memory_as(at::ScalarType type, const at::Tensor& tensor) {
  const c10::InferenceMode never(false);  // Gloo's threads, which write the tensor, are not in that mode
  const auto elems = static_cast<int64_t>(tensor.nbytes() / c10::elementSize(type));
  return at::from_blob(tensor.data_ptr(), {elems}, [tensor](void*) {}, at::TensorOptions(type).device(tensor.device()));
}

Tensors bytes_of(const Tensors& tensors) {
  Tensors found;
  for (const at::Tensor& tensor : tensors) found.push_back(memory_as(at::kByte, tensor));
  return found;
}

at::Tensor memory_of_gloo(int64_t bytes) {
  const c10::InferenceMode never(false);
  return at::empty({bytes}, at::kByte);
}

std::function<bool(std::chrono::milliseconds)> ending_of(Works works) {
  return [works = std::move(works)](std::chrono::milliseconds limit) {
    return std::all_of(works.begin(), works.end(), [&](const auto& work) {
      try {
        return work->wait(limit);
      } catch (const std::exception&) {
        return work->isCompleted() && work->wait();  // it may have ended since
      }
    });
  };
}

void let_go(std::vector<c10::intrusive_ptr<c10d::Backend>> groups) {
  std::packaged_task<void()> end([groups = std::move(groups)]() mutable { groups.clear(); });
  const std::future<void> ended = end.get_future();
  try {
    std::thread(std::move(end)).detach();
  } catch (const std::system_error&) {  // no thread could be started, so this one has waited
    return;
  }
  ended.wait_for(kEndsSoon);
}

}  // namespace fastreduce
