#include "check.h"

#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>

#include <array>
#include <sstream>
#include <utility>

#include "call.h"
#include "cpu/kernels.h"

namespace fastreduce {
namespace {

constexpr std::array<std::pair<const char*, Op>, 8> kOps = {{
    {"sum", Op::sum}, {"avg", Op::avg}, {"prod", Op::prod}, {"min", Op::min},
    {"max", Op::max}, {"band", Op::band}, {"bor", Op::bor}, {"bxor", Op::bxor},
}};

constexpr std::array<std::pair<const char*, Collective>, 5> kCollectives = {{
    {"allreduce", Collective::allreduce},
    {"reduce", Collective::reduce},
    {"broadcast", Collective::broadcast},
    {"reduce_scatter", Collective::reduce_scatter},
    {"all_gather", Collective::all_gather},
}};

template <class Names>
auto parse(const Names& names, const std::string& wanted, const char* what) {
  std::string known;
  for (const auto& [name, value] : names) {
    if (wanted == name) return value;
    known += std::string(known.empty() ? "" : ", ") + name;
  }
  TORCH_CHECK_VALUE(false, "unknown ", what, " '", wanted, "'; known are ", known);
}

template <class Names, class Value>
const char* find_name(const Names& names, Value wanted) {
  for (const auto& [name, value] : names)
    if (value == wanted) return name;
  return "?";
}

bool is_bitwise(Op op) { return op == Op::band || op == Op::bor || op == Op::bxor; }

// Of booleans torch's sum is or, its product is and; stored as 0 and 1 both are bitwise.
Op of_booleans(Op op) {
  switch (op) {
    case Op::sum:
    case Op::max: return Op::bor;
    case Op::prod:
    case Op::min: return Op::band;
    default: return op;
  }
}

// The kernels' counterpart, or per_elem 0 where there is none.
Arithmetic counterpart(at::ScalarType type, Op op) {
  const Arithmetic none{DType::u8, op, 0};
  switch (type) {
    case at::kByte: return {DType::u8, op, 1};
    case at::kChar: return {DType::i8, op, 1};
    case at::kShort: return {DType::i16, op, 1};
    case at::kInt: return {DType::i32, op, 1};
    case at::kLong: return {DType::i64, op, 1};
    case at::kBool: return op == Op::avg ? none : Arithmetic{DType::u8, of_booleans(op), 1};
    case at::kHalf: return {DType::f16, op, 1};
    case at::kBFloat16: return {DType::bf16, op, 1};
    case at::kFloat: return {DType::f32, op, 1};
    case at::kDouble: return {DType::f64, op, 1};
    case at::kComplexFloat: return op == Op::sum || op == Op::avg ? Arithmetic{DType::f32, op, 2} : none;
    case at::kComplexDouble: return op == Op::sum || op == Op::avg ? Arithmetic{DType::f64, op, 2} : none;
    case at::kFloat8_e4m3fn: return {DType::f8_e4m3, op, 1};
    case at::kFloat8_e5m2: return {DType::f8_e5m2, op, 1};
    default: return none;
  }
}

std::string kind_of_layout(const at::Tensor& tensor) {
  if (tensor.is_nested()) return "nested";
  if (tensor.is_quantized()) return "quantized";
  std::ostringstream text;
  text << (tensor.is_mkldnn() ? "opaque" : "sparse") << " (layout " << tensor.layout() << ")";
  return text.str();
}

void check_device(const TensorLists& lists, int64_t rank, int64_t index) {
  const at::Tensor& tensor = lists.at(rank, index);
  TORCH_CHECK_VALUE(!tensor.is_cuda() || cuda_backend, lists.where(rank, index), " is on ", tensor.device(),
                    "; this build of fastreduce reduces CPU tensors only: move it with .cpu()");
  TORCH_CHECK_VALUE(tensor.is_cpu() || tensor.is_cuda(), lists.where(rank, index), " is on ", tensor.device(),
                    "; want a tensor in CPU memory or on a CUDA device");
  TORCH_CHECK_VALUE(tensor.is_cuda() == lists.at(0, 0).is_cuda(), lists.where(rank, index), " is on ",
                    tensor.device(), " but ", lists.where(0, 0), " is on ", lists.at(0, 0).device(),
                    "; move all ranks to GPUs or all to the CPU");
  TORCH_CHECK_VALUE(tensor.device() == lists.at(rank, 0).device(), lists.where(rank, index), " is on ",
                    tensor.device(), " but ", lists.where(rank, 0), " is on ", lists.at(rank, 0).device(),
                    "; want all tensors of a rank on one device");
  const auto address = reinterpret_cast<uintptr_t>(tensor.is_cuda() ? tensor.data_ptr() : nullptr);
  TORCH_CHECK_VALUE(address % tensor.element_size() == 0, lists.where(rank, index),
                    " does not lie at a multiple of its element size, which CUDA cannot read; pass .clone()");
}

void check_tensor(const TensorLists& lists, int64_t rank, int64_t index) {
  const at::Tensor& tensor = lists.at(rank, index);
  const at::Tensor& first = lists.at(0, index);
  TORCH_CHECK_VALUE(!tensor.is_nested() && !tensor.is_quantized() && tensor.layout() == at::kStrided,
                    lists.where(rank, index), " is ", kind_of_layout(tensor),
                    "; want a dense tensor: call .dequantize() or .to_dense() first");
  check_device(lists, rank, index);
  TORCH_CHECK_VALUE(tensor.scalar_type() == first.scalar_type(), lists.where(rank, index), " is ",
                    tensor.dtype(), " but ", lists.where(0, index), " is ", first.dtype(),
                    "; every rank needs the same dtype");
  TORCH_CHECK_VALUE(tensor.sizes() == first.sizes(), lists.where(rank, index), " has shape ", tensor.sizes(),
                    " but ", lists.where(0, index), " has shape ", first.sizes(),
                    "; every rank needs the same shape");
  TORCH_CHECK_VALUE(tensor.numel() == 0 || tensor.data_ptr() != nullptr, lists.where(rank, index),
                    " has no memory behind it");
}

void check_lists(const TensorLists& lists) {
  for (int64_t index = 0; index < lists.per_rank; ++index)
    for (int64_t rank = 0; rank < lists.ranks; ++rank) check_tensor(lists, rank, index);
}

// `whole` tensors hold one shard for each rank, `shards` tensors hold one.
void check_shards(const Call& call, const TensorLists& whole, const TensorLists& shards) {
  TORCH_CHECK_VALUE(call.inputs.ranks == call.ranks() && call.inputs.per_rank == call.outputs.per_rank,
                    "outputs have ", call.ranks(), " ranks of ", call.outputs.per_rank, " tensors but tensors have ",
                    call.inputs.ranks, " ranks of ", call.inputs.per_rank, "; want the same of both");
  for (int64_t i = 0; i < whole.per_rank; ++i) {
    TORCH_CHECK_VALUE(whole.at(0, i).scalar_type() == shards.at(0, i).scalar_type(), shards.where(0, i), " is ",
                      shards.at(0, i).dtype(), " but ", whole.where(0, i), " is ", whole.at(0, i).dtype(),
                      "; want the same dtype");
    TORCH_CHECK_VALUE(whole.at(0, i).numel() == shards.at(0, i).numel() * call.ranks(), whole.where(0, i), " has ",
                      whole.at(0, i).numel(), " elements and ", shards.where(0, i), " has ", shards.at(0, i).numel(),
                      "; want ", call.ranks(), " times as many (one shard a rank)");
  }
}

}  // namespace

std::string TensorLists::where(int64_t rank, int64_t index) const {
  std::ostringstream text;
  text << (std::string(name) == "outputs" ? "the output of rank " : "rank ") << rank << ", tensor " << index;
  return text.str();
}

Collective parse_collective(const std::string& name) { return parse(kCollectives, name, "collective"); }

const char* name_of(Collective collective) { return find_name(kCollectives, collective); }

Op parse_op(const std::string& name) { return parse(kOps, name, "op"); }

Arithmetic arithmetic(const Call& call, at::ScalarType type, int64_t index) {
  const int64_t elem_bytes = static_cast<int64_t>(c10::elementSize(type));
  if (call.moves_only()) return {DType::u8, Op::sum, elem_bytes};
  Arithmetic found = counterpart(type, call.op);
  if (is_bitwise(found.op) && c10::isIntegralType(type, /*includeBool=*/true))
    found = {DType::u8, found.op, elem_bytes};
  const bool defined = found.per_elem > 0 && select_baseline(found.dtype, found.op, 2) != nullptr;
  TORCH_CHECK_VALUE(defined, "op '", find_name(kOps, call.op), "' is not defined for ", c10::toString(type), " (tensor ",
                    index, "); floats take sum, avg, prod, min, max (float8 no prod), complex sum and avg, "
                    "integers and bool sum, prod, min, max, band, bor, bxor");
  return found;
}

void check(const Call& call) {
  TORCH_CHECK_VALUE(call.ranks() > 0, "no ranks: want a list with one tensor, or one list of tensors, a rank");
  TORCH_CHECK_VALUE(call.root >= 0 && call.root < call.ranks(), "root ", call.root, " is not a rank: there are ",
                    call.ranks(), ", numbered from 0");
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
  for (int64_t i = 0; i < call.outputs.per_rank; ++i) arithmetic(call, call.outputs.at(0, i).scalar_type(), i);
  check_overlap(call);
}

void check_autograd(const TensorLists& lists, const std::vector<bool>& written) {
  const bool grad_mode = c10::GradMode::is_enabled();
  const bool inference_mode = c10::InferenceMode::is_enabled();
  for (int64_t rank = 0; rank < lists.ranks; ++rank) {
    if (!written[rank]) continue;
    for (int64_t i = 0; i < lists.per_rank; ++i) {
      const at::Tensor& tensor = lists.at(rank, i);
      TORCH_CHECK(inference_mode || !tensor.is_inference(),
                  "Inplace update to inference tensor outside InferenceMode is not allowed (",
                  lists.where(rank, i), ")");
      TORCH_CHECK(!tensor._fw_grad(0).defined(), lists.where(rank, i),
                  " has a forward-mode tangent, which a reduction across ranks would leave as it is");
      if (!grad_mode || !tensor.requires_grad()) continue;
      TORCH_CHECK(!tensor.is_leaf(), "a leaf Variable that requires grad is being used in an in-place operation (",
                  lists.where(rank, i), "): reduce its .grad, or call under torch.no_grad()");
      TORCH_CHECK(false, lists.where(rank, i), " requires grad, and autograd cannot follow a reduction across ranks: "
                  "call under torch.no_grad(), or on .detach()");
    }
  }
}

}  // namespace fastreduce
