// Finds tensors that share memory. For dense tensors it is enough to compare their first and last addresses (spans).
// The spans of strided views may overlap although the views do not (columns of one matrix on different ranks); for
// these, the bytes of every element are marked.
#include <ATen/MemoryOverlap.h>

#include <algorithm>
#include <cstdint>
#include <numeric>

#include "check.h"

namespace fastreduce {
namespace {

struct ByteSpan {
  uintptr_t begin;
  uintptr_t end;
  const TensorLists* lists;
  int64_t rank;
  int64_t index;

  const at::Tensor& tensor() const { return lists->at(rank, index); }
  std::string where() const { return lists->where(rank, index); }
};

ByteSpan span_of(const TensorLists& lists, int64_t rank, int64_t index) {
  const at::Tensor& tensor = lists.at(rank, index);
  const auto begin = reinterpret_cast<uintptr_t>(tensor.data_ptr());
  return {begin, begin + span_elems(tensor) * tensor.element_size(), &lists, rank, index};
}

// A rank's own shard of its whole tensor: the in-place form of reduce_scatter and all_gather.
bool is_own_shard(const Call& call, const TensorLists& shards, int64_t rank, int64_t index) {
  const TensorLists& whole = &shards == &call.inputs ? call.outputs : call.inputs;
  const at::Tensor& shard = shards.at(rank, index);
  const at::Tensor& all = whole.at(rank, index);
  return shard.is_contiguous() && all.is_contiguous() &&
         shard.data_ptr() == static_cast<std::byte*>(all.data_ptr()) + rank * shard.nbytes();
}

std::vector<ByteSpan> spans_of(const Call& call) {
  const TensorLists* shards = call.collective == Collective::reduce_scatter ? &call.outputs
                              : call.collective == Collective::all_gather   ? &call.inputs
                                                                            : nullptr;
  std::vector<ByteSpan> spans;
  spans.reserve(call.outputs.flat.size() + call.inputs.flat.size());
  for (const TensorLists* lists : {&call.inputs, &call.outputs})
    for (int64_t rank = 0; rank < lists->ranks; ++rank)
      for (int64_t i = 0; i < lists->per_rank; ++i)
        if (lists->at(rank, i).numel() > 0 && !(lists == shards && is_own_shard(call, *lists, rank, i)))
          spans.push_back(span_of(*lists, rank, i));
  return spans;
}

template <class Visit>  // visit(address of an element) -> whether to go on
void for_each_element(const at::Tensor& tensor, const Visit& visit) {
  std::vector<int64_t> at(tensor.dim(), 0);
  auto address = reinterpret_cast<uintptr_t>(tensor.data_ptr());
  for (int64_t left = tensor.numel(); left > 0 && visit(address); --left) {
    for (int64_t d = tensor.dim() - 1; d >= 0; --d) {
      const int64_t step = tensor.stride(d) * static_cast<int64_t>(tensor.element_size());
      address += step;
      if (++at[d] < tensor.size(d)) break;
      address -= step * tensor.size(d);
      at[d] = 0;
    }
  }
}

[[noreturn]] void refuse(const ByteSpan& one, const ByteSpan& other) {
  TORCH_CHECK_VALUE(one.lists != other.lists || one.rank != other.rank || one.index != other.index, one.where(),
                    " overlaps itself (shape ", one.tensor().sizes(), ", strides ", one.tensor().strides(),
                    "); every element needs memory of its own: keep a .contiguous() copy and pass that");
  TORCH_CHECK_VALUE(false, other.where(), " shares memory with ", one.where(),
                    "; every tensor needs memory of its own, or results would overwrite each other: keep a .clone() "
                    "of one of them and reduce that");
}

const ByteSpan& owner_of(const std::vector<ByteSpan>& cluster, uintptr_t wanted) {
  for (const ByteSpan& span : cluster) {
    bool found = false;
    const uintptr_t bytes = span.tensor().element_size();
    for_each_element(span.tensor(), [&](uintptr_t address) {
      found = address <= wanted && wanted < address + bytes;
      return !found;
    });
    if (found) return span;
  }
  return cluster.front();
}

void check_exactly(const std::vector<ByteSpan>& cluster, uintptr_t begin, uintptr_t end) {
  std::vector<bool> taken(end - begin, false);
  for (const ByteSpan& span : cluster) {
    const uintptr_t bytes = span.tensor().element_size();
    for_each_element(span.tensor(), [&](uintptr_t address) {
      for (uintptr_t byte = address; byte < address + bytes; ++byte) {
        if (taken[byte - begin]) refuse(owner_of(cluster, byte), span);
        taken[byte - begin] = true;
      }
      return true;
    });
  }
}

// True for slices and transposes of contiguous tensors: there each stride is larger than the distance that all
// smaller strides together can cover.
bool surely_apart_from_itself(const at::Tensor& tensor) {
  if (tensor.is_non_overlapping_and_dense()) return true;
  std::vector<int64_t> dims(tensor.dim());
  std::iota(dims.begin(), dims.end(), 0);
  std::sort(dims.begin(), dims.end(), [&](int64_t a, int64_t b) { return tensor.stride(a) < tensor.stride(b); });
  int64_t reach = 0;
  for (int64_t d : dims) {
    if (tensor.size(d) == 1) continue;
    if (tensor.stride(d) <= reach) return false;
    reach += (tensor.size(d) - 1) * tensor.stride(d);
  }
  return true;
}

}  // namespace

void check_overlap(const Call& call) {
  std::vector<ByteSpan> spans = spans_of(call);
  for (const ByteSpan& span : spans)
    if (at::has_internal_overlap(span.tensor()) == at::MemOverlap::Yes) refuse(span, span);
  const auto earlier = [](const ByteSpan& a, const ByteSpan& b) { return a.begin < b.begin; };
  if (!std::is_sorted(spans.begin(), spans.end(), earlier)) std::sort(spans.begin(), spans.end(), earlier);
  for (size_t first = 0, next = 0; first < spans.size(); first = next) {
    uintptr_t end = spans[first].end;
    for (next = first + 1; next < spans.size() && spans[next].begin < end; ++next) end = std::max(end, spans[next].end);
    const auto dense = [](const ByteSpan& span) { return span.tensor().is_non_overlapping_and_dense(); };
    if (next == first + 1 && surely_apart_from_itself(spans[first].tensor())) continue;
    if (next > first + 1 && std::all_of(spans.begin() + first, spans.begin() + next, dense))
      refuse(spans[first], spans[first + 1]);
    check_exactly({spans.begin() + first, spans.begin() + next}, spans[first].begin, end);
  }
}

}  // namespace fastreduce
