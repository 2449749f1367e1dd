#include "tables.h"

#include <algorithm>

#include "check.h"

namespace fastreduce {
namespace {

// Whether each must be made 0 or 1 first: torch takes every byte but 0 for true, and views of other memory hold any.
bool are_any_bytes(const Call& call, const at::Tensor& tensor) {
  return tensor.scalar_type() == at::kBool && call.op == Op::bxor && !moves_only(call.collective);
}

bool holds_values(const Call& call, const at::Tensor& tensor) {
  return !tensor.is_conj() && !tensor.is_neg() && !are_any_bytes(call, tensor);
}

// As what torch can copy: it refuses integers of fewer than 8 bits.
at::Tensor as_copied(const at::Tensor& tensor) {
  return tensor.element_size() == 1 && !tensor.is_neg() ? tensor.view(at::kByte) : tensor;
}

at::Tensor contiguous_values(const Call& call, const at::Tensor& tensor) {
  const at::Tensor values = as_copied(tensor).resolve_conj().resolve_neg();
  return (are_any_bytes(call, tensor) ? values.ne(0) : values).contiguous();
}

// Whether the tensors of all ranks have the same elements at the same offsets, without holes.
bool walkable_in_place(const Call& call, int64_t index) {
  const at::Tensor& first = call.outputs.at(0, index);
  bool contiguous = true;
  for (const TensorLists* lists : {&call.inputs, &call.outputs})
    for (int64_t rank = 0; rank < lists->ranks; ++rank) {
      const at::Tensor& tensor = lists->at(rank, index);
      if (!holds_values(call, tensor)) return false;
      contiguous = contiguous && tensor.is_contiguous();
    }
  if (contiguous) return true;
  if (call.inputs.ranks > 0 || !first.is_non_overlapping_and_dense()) return false;
  for (int64_t rank = 1; rank < call.ranks(); ++rank)
    for (int64_t d = 0; d < first.dim(); ++d)
      if (first.size(d) > 1 && call.outputs.at(rank, index).stride(d) != first.stride(d)) return false;
  return true;
}

}  // namespace

Tables::Tables(const Call& call, const Schedule& schedule) {
  TORCH_CHECK(schedule.buffers == call.inputs.ranks + call.outputs.ranks, "a program with ", schedule.buffers,
              " buffers for a call with ", call.inputs.ranks + call.outputs.ranks);
  for (int64_t index = 0; index < call.outputs.per_rank; ++index) add(call, schedule, index);
}

// The tensor is cut into the schedule's shards, one row each, or the whole tensor belongs to one shard.
void Tables::add(const Call& call, const Schedule& schedule, int64_t index) {
  const bool direct = walkable_in_place(call, index);
  const bool gather = call.collective == Collective::all_gather;
  const bool scatter = call.collective == Collective::reduce_scatter;
  const at::Tensor& whole = scatter ? call.inputs.at(0, index) : call.outputs.at(0, index);
  const Arithmetic kernel = arithmetic_of(call, index);
  const int64_t elem_bytes = static_cast<int64_t>(whole.element_size()) / kernel.per_elem;
  Table& table = table_of(kernel, elem_bytes);

  std::vector<std::byte*> memory;
  memory.reserve(schedule.buffers);
  for (const TensorLists* lists : {&call.inputs, &call.outputs})
    for (int64_t rank = 0; rank < lists->ranks; ++rank)
      memory.push_back(memory_of(call, *lists, rank, index, direct, schedule.written[memory.size()]));

  const int64_t elems = whole.numel() * kernel.per_elem;
  // In place any parts will do. A tensor that holds one shard fixes their size.
  const int64_t shard_elems = schedule.whole_tensors ? elems
                              : gather || scatter    ? elems / schedule.shards
                                                     : part_elems(elems, schedule.shards, elem_bytes);
  for (int64_t part = 0; part * shard_elems < elems; ++part) {
    const int64_t begin = part * shard_elems;
    const int64_t shard = schedule.whole_tensors ? index % schedule.shards : part;
    table.rows.push_back({static_cast<int>(shard), std::min(shard_elems, elems - begin), table.pointers.size()});
    for (int64_t buffer = 0; buffer < schedule.buffers; ++buffer) {
      const bool holds_one_shard = gather ? buffer < schedule.ranks : scatter && buffer >= schedule.ranks;
      if (!holds_one_shard)
        table.pointers.push_back(memory[buffer] + begin * elem_bytes);
      else
        table.pointers.push_back(buffer % schedule.ranks == shard ? memory[buffer] : nullptr);
    }
  }
}

std::byte* Tables::memory_of(const Call& call, const TensorLists& lists, int64_t rank, int64_t index, bool direct,
                             bool written) {
  const at::Tensor& tensor = lists.at(rank, index);
  if (direct || (tensor.is_contiguous() && holds_values(call, tensor)))
    return static_cast<std::byte*>(tensor.data_ptr());
  TORCH_CHECK(
      call.engine().may_copy(call.devices()), lists.where(rank, index),
      " needs a contiguous copy, which a capture over several GPUs does not keep; pass contiguous tensors, without "
      "lazy conjugates and negatives, and for bxor uint8 tensors in place of booleans");
  copies_.push_back({tensor, contiguous_values(call, tensor), written});
  return static_cast<std::byte*>(copies_.back().contiguous.data_ptr());
}

Table& Tables::table_of(const Arithmetic& kernel, int64_t elem_bytes) {
  for (Table& table : tables_)
    if (table.dtype == kernel.dtype && table.op == kernel.op) return table;
  return tables_.emplace_back(Table{kernel.dtype, kernel.op, elem_bytes, {}, {}});
}

void Tables::write_back() const {
  for (const Copy& copy : copies_)
    if (copy.written) as_copied(copy.original).copy_(copy.contiguous);
}

}  // namespace fastreduce
