#include "processes/checks.h"

#include <ATen/MemoryOverlap.h>

namespace fastreduce {
namespace {

void check_factor(const c10d::ReduceOp& op, at::ScalarType type) {
  if (op.op_ != c10d::ReduceOp::PREMUL_SUM) return;
  TORCH_CHECK_VALUE(op.supplement_, "PREMUL_SUM without a factor");
  const bool multiplies = type == at::kHalf || type == at::kBFloat16 || type == at::kFloat || type == at::kDouble;
  TORCH_CHECK_VALUE(multiplies, "premul_sum of ", type,
                    " tensors is not defined; want float16, bfloat16, float32 or float64");
}

at::ScalarType check_tensors(const Tensors& tensors) {
  TORCH_CHECK_VALUE(!tensors.empty(), "no tensors; want at least one");
  for (const at::Tensor& tensor : tensors) {
    TORCH_CHECK_VALUE(tensor.is_cpu() || tensor.is_cuda(), "a tensor is on ", tensor.device(),
                      "; the backend fastreduce serves tensors of CPUs and CUDA GPUs");
    TORCH_CHECK_VALUE(tensor.device() == tensors.front().device(), "tensors are on ", tensors.front().device(), " and ",
                      tensor.device(), "; want one device for each call");
    TORCH_CHECK_VALUE(tensor.layout() == at::kStrided, "a tensor has layout ", tensor.layout(),
                      "; want dense tensors: pass tensor.to_dense()");
    TORCH_CHECK_VALUE(tensor.scalar_type() == tensors.front().scalar_type(), "tensors have dtypes ",
                      tensors.front().scalar_type(), " and ", tensor.scalar_type(), "; want one dtype for each call");
  }
  return tensors.front().scalar_type();
}

}  // namespace

Arithmetic check_call(Collective collective, const c10d::ReduceOp& op, const Tensors& tensors) {
  const at::ScalarType type = check_tensors(tensors);
  if (moves_only(collective)) return moved(type);
  const auto found = find_arithmetic(type, op_of(op));
  TORCH_CHECK_VALUE(found, name_of(op_of(op)), " of ", type, " tensors is not defined; defined are ", ops_of(type));
  check_factor(op, type);
  return *found;
}

void check_written(const Tensors& tensors) {
  for (const at::Tensor& tensor : tensors)
    TORCH_CHECK_VALUE(at::has_internal_overlap(tensor) != at::MemOverlap::Yes, "a tensor of sizes ", tensor.sizes(),
                      " and strides ", tensor.strides(),
                      ", which is to be written, has elements that share memory; want none: pass tensor.contiguous()");
}

void check_on_cpu(const char* call, const Tensors& tensors) {
  for (const at::Tensor& tensor : tensors)
    TORCH_CHECK_VALUE(tensor.is_cpu(), call, " of a tensor on ", tensor.device(),
                      "; the backend fastreduce has it for CPU tensors only: pass tensor.cpu()");
}

void check_lengths(Collective collective, int ranks, const std::vector<Tensors>& inputs,
                   const std::vector<Tensors>& outputs) {
  const bool gather = collective == Collective::all_gather;
  const std::vector<Tensors>& whole = gather ? outputs : inputs;
  const std::vector<Tensors>& part = gather ? inputs : outputs;
  TORCH_CHECK_VALUE(whole.size() == part.size(), inputs.size(), " inputs and ", outputs.size(),
                    " outputs; want as many of both");
  for (size_t i = 0; i < whole.size(); ++i) {
    const int64_t elems = elems_of(part[i]);
    const bool one = whole[i].size() == 1 && whole[i][0].numel() == ranks * elems;
    bool list = whole[i].size() == static_cast<size_t>(ranks);
    for (const at::Tensor& tensor : whole[i]) list = list && tensor.numel() == elems;
    TORCH_CHECK_VALUE(one || list, gather ? "outputs" : "inputs", " have ", elems_of(whole[i]), " elements in ",
                      whole[i].size(), " tensors; want ", ranks, " times the ", elems, " of the ",
                      gather ? "input" : "output", ", in one tensor or in one of that length for each rank");
  }
}

}  // namespace fastreduce
