#include "processes/items.h"

#include <ATen/TensorOperators.h>

#include <sstream>

#include "processes/heap.h"

namespace fastreduce {
namespace {

at::Tensor scaled(const at::Tensor& tensor, const c10d::ReduceOp& op) {
  const auto* factor = static_cast<const c10d::NCCLPreMulSumSupplement*>(op.supplement_.get());
  const at::Tensor& number = factor->tensor_factor;
  return (number.defined() ? tensor * number.reshape({}) : tensor * factor->double_factor).to(tensor.scalar_type());
}

// The memory of a contiguous tensor.
struct Extent {
  const std::byte* begin;
  const std::byte* end;
  explicit Extent(const at::Tensor& tensor)
      : begin(static_cast<const std::byte*>(tensor.const_data_ptr())), end(begin + tensor.nbytes()) {}
  bool overlaps(const Extent& other) const { return begin < other.end && other.begin < end; }
};

}  // namespace

Op op_of(const c10d::ReduceOp& op) {
  switch (op.op_) {
    case c10d::ReduceOp::AVG: return Op::avg;
    case c10d::ReduceOp::PRODUCT: return Op::prod;
    case c10d::ReduceOp::MIN: return Op::min;
    case c10d::ReduceOp::MAX: return Op::max;
    case c10d::ReduceOp::BAND: return Op::band;
    case c10d::ReduceOp::BOR: return Op::bor;
    case c10d::ReduceOp::BXOR: return Op::bxor;
    default: return Op::sum;  // also PREMUL_SUM, whose factor was applied before
  }
}

int64_t elems_of(const Tensors& tensors) {
  int64_t elems = 0;
  for (const at::Tensor& tensor : tensors) elems += tensor.numel();
  return elems;
}

std::string words_of(const at::Tensor& tensor) {
  std::ostringstream text;
  text << name_of(tensor.scalar_type()) << " " << tensor.sizes();
  return text.str();
}

Tensors flat(const std::vector<Tensors>& lists) {
  Tensors all;
  for (const Tensors& list : lists) all.insert(all.end(), list.begin(), list.end());
  return all;
}

std::vector<Tensors> each_alone(const Tensors& tensors) {
  std::vector<Tensors> lists;
  for (const at::Tensor& tensor : tensors) lists.push_back({tensor});
  return lists;
}

std::vector<Span> all_shards(const Tensors& tensors, int64_t shards, int64_t part_elems, const Arithmetic& kernel,
                             int64_t elem_bytes) {
  std::vector<Span> found(shards);
  for (int64_t s = 0; s < shards; ++s) {
    const bool alone = tensors.size() > 1;
    const at::Tensor& tensor = tensors[alone ? s : 0];
    const int64_t begin = alone ? 0 : s * part_elems;
    const int64_t elems = std::min(tensor.numel() * kernel.per_elem - begin, part_elems);
    if (elems > 0) found[s] = {static_cast<std::byte*>(tensor.data_ptr()) + begin * elem_bytes, elems, begin};
  }
  return found;
}

std::vector<Span> one_shard(const Tensors& tensors, int64_t shards, int shard, const Arithmetic& kernel) {
  std::vector<Span> found(shards);
  found[shard] = {static_cast<std::byte*>(tensors[0].data_ptr()), tensors[0].numel() * kernel.per_elem, 0};
  return found;
}

bool in_the_way(const std::vector<Tensors>& wholes, const std::vector<Tensors>& parts, int rank) {
  for (size_t i = 0; i < parts.size(); ++i) {
    const Extent part(parts[i][0]);
    for (size_t j = 0; j < wholes.size(); ++j)
      for (size_t shard = 0; shard < wholes[j].size(); ++shard) {
        const Extent whole(wholes[j][shard]);
        if (!part.overlaps(whole)) continue;
        const bool list = wholes[j].size() > 1;
        const std::byte* place = whole.begin + (list ? 0 : rank * (part.end - part.begin));
        if (i != j || (list && static_cast<int>(shard) != rank) || part.begin != place) return true;
      }
  }
  return false;
}

void announce(const at::Tensor& tensor, Announcement& announcement) {
  if (const auto found = Heap::instance().find(tensor.data_ptr(), tensor.nbytes())) {
    announcement.memory = found->memory;
    announcement.offset = found->offset;
  }
}

void run_announced(Group& group, const FlagsCall& call, const at::Tensor& tensor) {
  try {
    run_flags(group, call);
  } catch (...) {
    if (call.announcement.memory.bytes > 0) Heap::instance().abandon(tensor.data_ptr());
    throw;
  }
}

Tensors Usable::read(const Tensors& tensors, const c10d::ReduceOp& op) {
  Tensors found;
  if (!reached_) Heap::instance().pin();
  for (const at::Tensor& tensor : tensors) {
    const at::Tensor plain = tensor.resolve_conj().resolve_neg().contiguous();
    found.push_back(op.op_ == c10d::ReduceOp::PREMUL_SUM ? scaled(plain, op) : plain);
    if (!reached_) found.back() = Heap::instance().allocate(plain.sizes(), plain.scalar_type()).copy_(found.back());
  }
  return found;
}

Tensors Usable::written(const Tensors& tensors, const c10d::ReduceOp& op) {
  Tensors found = read(tensors, op);
  for (size_t i = 0; i < tensors.size(); ++i)
    if (!found[i].is_same(tensors[i])) copies_.emplace_back(tensors[i], found[i]);
  return found;
}

void Usable::write_back() const {
  for (const auto& [original, copy] : copies_) original.copy_(copy);
}

}  // namespace fastreduce
