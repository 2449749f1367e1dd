#include "check.h"

#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>

namespace fastreduce {
namespace {

// Why no engine can read the tensor, and what to do about it; nullptr if it is dense.
const char* why_not_dense(const at::Tensor& tensor) {
  if (tensor.is_nested()) return "nested; pass the tensors that it consists of (.unbind())";
  if (tensor.is_quantized()) return "quantized; keep a .dequantize() copy and reduce that";
  if (tensor.is_mkldnn()) return "in oneDNN's layout; keep a .to_dense() copy and reduce that";
  if (tensor.layout() != at::kStrided)
    return "sparse; keep a .to_dense() copy and reduce that, or a coalesced tensor's .values() where all ranks "
           "have the same indices";
  return nullptr;
}

void check_device(const TensorLists& lists, int64_t rank, int64_t index) {
  const at::Tensor& tensor = lists.at(rank, index);
  TORCH_CHECK_VALUE(tensor.is_cpu() || tensor.is_cuda(), lists.where(rank, index), " is on ", tensor.device(),
                    "; want a tensor in CPU memory or on a CUDA device");
  Engine* engine = find_engine(tensor.device().type());
  TORCH_CHECK_VALUE(engine, lists.where(rank, index), " is on ", tensor.device(),
                    "; this build of fastreduce reduces CPU tensors only: move it with .cpu()");
  TORCH_CHECK_VALUE(tensor.is_cuda() == lists.at(0, 0).is_cuda(), lists.where(rank, index), " is on ", tensor.device(),
                    " but ", lists.where(0, 0), " is on ", lists.at(0, 0).device(),
                    "; move all ranks to GPUs or all to the CPU");
  TORCH_CHECK_VALUE(tensor.device() == lists.at(rank, 0).device(), lists.where(rank, index), " is on ", tensor.device(),
                    " but ", lists.where(rank, 0), " is on ", lists.at(rank, 0).device(),
                    "; want all tensors of a rank on one device");
  const auto address = reinterpret_cast<uintptr_t>(engine->needs_alignment() ? tensor.data_ptr() : nullptr);
  TORCH_CHECK_VALUE(address % tensor.element_size() == 0, lists.where(rank, index),
                    " does not lie at a multiple of its element size, which its device cannot read; want memory that "
                    "torch allocated");
}

void check_tensor(const TensorLists& lists, int64_t rank, int64_t index) {
  const at::Tensor& tensor = lists.at(rank, index);
  const at::Tensor& first = lists.at(0, index);
  const char* problem = why_not_dense(tensor);
  TORCH_CHECK_VALUE(!problem, lists.where(rank, index), " is ", problem);
  check_device(lists, rank, index);
  TORCH_CHECK_VALUE(tensor.scalar_type() == first.scalar_type(), lists.where(rank, index), " is ",
                    name_of(tensor.scalar_type()), " but ", lists.where(0, index), " is ", name_of(first.scalar_type()),
                    "; every rank needs the same dtype");
  TORCH_CHECK_VALUE(tensor.sizes() == first.sizes(), lists.where(rank, index), " has shape ", tensor.sizes(), " but ",
                    lists.where(0, index), " has shape ", first.sizes(), "; every rank needs the same shape");
  TORCH_CHECK_VALUE(has_memory(tensor), lists.where(rank, index),
                    " has no memory behind it: its storage was freed, or is too small for it; keep a .clone() made "
                    "before that");
}

void check_lists(const TensorLists& lists) {
  for (int64_t index = 0; index < lists.per_rank; ++index)
    for (int64_t rank = 0; rank < lists.ranks; ++rank) check_tensor(lists, rank, index);
}

// Each tensor of `whole` has one shard per rank, each tensor of `shards` is one shard.
void check_shards(const Call& call, const TensorLists& whole, const TensorLists& shards) {
  TORCH_CHECK_VALUE(call.inputs.ranks == call.ranks() && call.inputs.per_rank == call.outputs.per_rank, "outputs have ",
                    call.ranks(), " ranks of ", call.outputs.per_rank, " tensors but tensors have ", call.inputs.ranks,
                    " ranks of ", call.inputs.per_rank, "; want the same of both");
  for (int64_t i = 0; i < whole.per_rank; ++i) {
    TORCH_CHECK_VALUE(whole.at(0, i).scalar_type() == shards.at(0, i).scalar_type(), shards.where(0, i), " is ",
                      name_of(shards.at(0, i).scalar_type()), " but ", whole.where(0, i), " is ",
                      name_of(whole.at(0, i).scalar_type()), "; want the same dtype");
    const int64_t whole_elems = whole.at(0, i).numel(), shard_elems = shards.at(0, i).numel();
    const bool swapped = whole_elems * call.ranks() == shard_elems;
    TORCH_CHECK_VALUE(whole_elems == shard_elems * call.ranks(), whole.where(0, i), " has ", whole_elems,
                      " elements and ", shards.where(0, i), " has ", shard_elems, "; want ", call.ranks(),
                      " times as many (one shard per rank)",
                      swapped ? "; outputs and tensors look swapped: outputs are the first argument" : "");
  }
}

void check_engine(const Call& call) {
  if (call.engine_name == "auto") return;
  TORCH_CHECK_VALUE(call.engine_name == "flags", "unknown engine '", call.engine_name, "'; known are auto, flags");
  TORCH_CHECK_VALUE(call.engine().has_flags(call.devices()),
                    "engine 'flags' is for ranks on several GPUs, but all are on ", call.devices().front(),
                    "; leave it out");
}

}  // namespace

Arithmetic arithmetic_of(const Call& call, int64_t index) {
  const at::ScalarType type = (call.inputs.flat.empty() ? call.outputs : call.inputs).at(0, index).scalar_type();
  if (moves_only(call.collective)) return moved(type);
  const auto found = find_arithmetic(type, call.op);
  TORCH_CHECK_VALUE(found, not_defined(type, call.op, " (tensor " + std::to_string(index) + ")"));
  return *found;
}

int64_t span_elems(const at::Tensor& tensor) {
  if (tensor.is_contiguous()) return tensor.numel();
  int64_t last = 0;  // strides are never negative in torch
  for (int64_t d = 0; d < tensor.dim(); ++d) last += (tensor.size(d) - 1) * tensor.stride(d);
  return last + 1;
}

bool has_memory(const at::Tensor& tensor) {
  if (tensor.numel() == 0) return true;
  const auto end = static_cast<size_t>(tensor.storage_offset() + span_elems(tensor));
  return tensor.data_ptr() != nullptr && end * tensor.element_size() <= tensor.storage().nbytes();
}

bool is_fake(const at::Tensor& tensor) {
  return tensor.has_storage() && tensor.unsafeGetTensorImpl()->unsafe_storage().device_type() == c10::kMeta;
}

void check_arguments(const Call& call) {
  TORCH_CHECK_VALUE(call.ranks() > 0, "no ranks: want a list with one tensor, or one list of tensors, per rank");
  TORCH_CHECK_VALUE(call.root >= 0 && call.root < call.ranks(), "root ", call.root, " is not a rank: there are ",
                    call.ranks(), ", numbered from 0");
  TORCH_CHECK_VALUE(by_shard(call.collective) || call.inputs.flat.empty(), name_of(call.collective), " has ",
                    call.inputs.flat.size(),
                    " inputs; want none, because it works in place: pass its tensors as outputs");
}

void check(const Call& call) {
  check_arguments(call);
  check_lists(call.outputs);
  check_lists(call.inputs);
  for (int64_t rank = 0; rank < call.inputs.ranks && call.inputs.ranks == call.ranks(); ++rank)
    if (call.inputs.per_rank > 0 && call.outputs.per_rank > 0)
      TORCH_CHECK_VALUE(call.inputs.at(rank, 0).device() == call.outputs.at(rank, 0).device(),
                        call.outputs.where(rank, 0), " is on ", call.outputs.at(rank, 0).device(), " but ",
                        call.inputs.where(rank, 0), " is on ", call.inputs.at(rank, 0).device(),
                        "; want a rank's output beside its tensor");
  if (call.collective == Collective::reduce_scatter) check_shards(call, call.inputs, call.outputs);
  if (call.collective == Collective::all_gather) check_shards(call, call.outputs, call.inputs);
  for (int64_t i = 0; i < call.outputs.per_rank; ++i) arithmetic_of(call, i);
  check_engine(call);
  check_overlap(call);
}

void check_inference(const TensorLists& lists, const std::vector<bool>& written) {
  if (c10::InferenceMode::is_enabled()) return;
  for (int64_t rank = 0; rank < lists.ranks; ++rank)
    for (int64_t i = 0; i < lists.per_rank; ++i)
      TORCH_CHECK(!written[rank] || !lists.at(rank, i).is_inference() || is_fake(lists.at(rank, i)),
                  "Inplace update to inference tensor outside InferenceMode is not allowed (", lists.where(rank, i),
                  ")");
}

void check_autograd(const TensorLists& lists, const std::vector<bool>& written) {
  check_inference(lists, written);
  const bool grad_mode = c10::GradMode::is_enabled();
  for (int64_t rank = 0; rank < lists.ranks; ++rank) {
    if (!written[rank]) continue;
    for (int64_t i = 0; i < lists.per_rank; ++i) {
      const at::Tensor& tensor = lists.at(rank, i);
      TORCH_CHECK(!tensor._fw_grad(0).defined(), lists.where(rank, i),
                  " has a forward-mode tangent, which a reduction across ranks would leave as it is");
      if (!grad_mode || !tensor.requires_grad()) continue;
      TORCH_CHECK(!tensor.is_leaf(), "a leaf Variable that requires grad is being used in an in-place operation (",
                  lists.where(rank, i), "): reduce its .grad, or call under torch.no_grad()");
      TORCH_CHECK(false, lists.where(rank, i),
                  " requires grad, and autograd cannot follow a reduction across ranks: "
                  "call under torch.no_grad(), or on .detach()");
    }
  }
}

}  // namespace fastreduce
