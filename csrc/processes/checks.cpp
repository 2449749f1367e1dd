#include "processes/checks.h"

#include <ATen/MemoryOverlap.h>

#include "check.h"

namespace fastreduce {
namespace {

void check_factor(const c10d::ReduceOp& op, at::ScalarType type) {
  if (op.op_ != c10d::ReduceOp::PREMUL_SUM) return;
  TORCH_CHECK_VALUE(op.supplement_, "PREMUL_SUM without a factor");
  const auto multiplies = [](at::ScalarType x) { return c10::isFloatingType(x) && find_arithmetic(x, Op::prod); };
  if (multiplies(type)) return;
  std::string wanted;
  for (int x = 0; x < static_cast<int>(at::ScalarType::NumOptions); ++x)
    if (const auto other = static_cast<at::ScalarType>(x); multiplies(other))
      wanted += std::string(wanted.empty() ? "" : ", ") + name_of(other);
  TORCH_CHECK_VALUE(false, "premul_sum of ", name_of(type), " tensors is not defined; want one of ", wanted);
}

}  // namespace

at::ScalarType check_tensors(const Tensors& tensors) {
  TORCH_CHECK_VALUE(!tensors.empty(), "no tensors; want at least one");
  for (const at::Tensor& tensor : tensors) {
    TORCH_CHECK_VALUE(tensor.is_cpu() || tensor.is_cuda(), "a tensor is on ", tensor.device(),
                      "; the backend fastreduce serves tensors of CPUs and CUDA GPUs");
    TORCH_CHECK_VALUE(tensor.device() == tensors.front().device(), "tensors are on ", tensors.front().device(), " and ",
                      tensor.device(), "; want one device for each call");
    TORCH_CHECK_VALUE(tensor.layout() == at::kStrided, "a tensor has layout ", tensor.layout(),
                      "; want dense tensors: keep a .to_dense() copy and pass that");
    TORCH_CHECK_VALUE(tensor.scalar_type() == tensors.front().scalar_type(), "tensors have dtypes ",
                      name_of(tensors.front().scalar_type()), " and ", name_of(tensor.scalar_type()),
                      "; want one dtype for each call");
    TORCH_CHECK_VALUE(has_memory(tensor), "a tensor of sizes ", tensor.sizes(),
                      " has no memory behind it; keep a .clone() and pass that");
  }
  return tensors.front().scalar_type();
}

c10d::ReduceOp folded(const c10d::ReduceOp& op, at::ScalarType type) {
  const bool torch_divides = c10::isIntegralType(type, /*includeBool=*/false) && !c10::isBarebonesUnsignedType(type);
  return op.op_ == c10d::ReduceOp::AVG && torch_divides ? c10d::ReduceOp(c10d::ReduceOp::SUM) : op;
}

Arithmetic check_call(Collective collective, const c10d::ReduceOp& op, const Tensors& tensors) {
  const at::ScalarType type = check_tensors(tensors);
  if (moves_only(collective)) return moved(type);
  const Op fold = op_of(folded(op, type));
  const auto found = find_arithmetic(type, fold);
  TORCH_CHECK_VALUE(found, not_defined(type, fold));
  check_factor(op, type);
  return *found;
}

void check_written(const Tensors& tensors) {
  for (const at::Tensor& tensor : tensors)
    TORCH_CHECK_VALUE(at::has_internal_overlap(tensor) != at::MemOverlap::Yes, "a tensor of sizes ", tensor.sizes(),
                      " and strides ", tensor.strides(),
                      ", which is to be written, has elements that share memory; want none: keep a .contiguous() copy "
                      "and pass that");
}

void check_apart(int rank, const Tensors& tensors) {
  if (tensors.size() < 2) return;
  Call call;
  call.outputs.flat = tensors;
  call.outputs.ranks = 1;
  call.outputs.per_rank = static_cast<int64_t>(tensors.size());
  call.outputs.first_rank = rank;
  check_overlap(call);
}

void check_on_cpu(const char* call, const Tensors& tensors) {
  for (const at::Tensor& tensor : tensors)
    TORCH_CHECK_VALUE(tensor.is_cpu(), call, " of a tensor on ", tensor.device(),
                      "; the backend fastreduce has it for CPU tensors only: keep a .cpu() copy and pass that");
}

void check_contiguous(const std::string& call, const Tensors& tensors) {
  for (const at::Tensor& tensor : tensors)
    TORCH_CHECK_VALUE(tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg(), call, " into a tensor of sizes ",
                      tensor.sizes(), " and strides ", tensor.strides(),
                      ", which Gloo cannot write as it lies; want a contiguous one: pass another, and copy from it");
}

void check_sparse(const c10d::ReduceOp& op, const at::Tensor& tensor) {
  TORCH_CHECK_VALUE(op.op_ == c10d::ReduceOp::SUM,
                    "a reduction of sparse tensors other than the sum is not defined; "
                    "keep a .to_dense() copy and pass that");
  const at::ScalarType type = tensor.scalar_type();
  const bool adds = type == at::kFloat || type == at::kDouble || type == at::kBFloat16 || type == at::kComplexFloat ||
                    type == at::kComplexDouble ||
                    (c10::isIntegralType(type, false) && !c10::isBarebonesUnsignedType(type));
  TORCH_CHECK_VALUE(adds, "sparse all_reduce of ", name_of(type),
                    " tensors: torch does not add them; keep a .float() or .to_dense() copy and "
                    "pass that");
}

void check_one_for_each(const char* call, const char* one_name, const char* list_name, const Tensors& one,
                        const std::vector<Tensors>& lists, int ranks, bool is_root) {
  TORCH_CHECK_VALUE(one.size() == 1, call, " has ", one.size(), " ", one_name, "; want one");
  Tensors all = flat(lists);
  const size_t wanted = is_root ? ranks : 0;
  bool fits = all.size() == wanted && lists.size() == (is_root ? 1 : 0);
  for (const at::Tensor& tensor : all) fits = fits && tensor.numel() == one[0].numel();
  TORCH_CHECK_VALUE(fits, call, " has ", elems_of(all), " elements in ", all.size(), " ", list_name, " on ",
                    is_root ? "its root" : "another rank than its root", "; want ", wanted, " tensors of ",
                    one[0].numel(), " elements");
  all.push_back(one[0]);
  check_tensors(all);
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
