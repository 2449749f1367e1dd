// Finds tensors that share memory. For dense tensors it is enough to compare their first and last addresses (spans).
// The spans of strided views may overlap although the views do not (columns of one matrix on different ranks); of
// these, every part is looked at.
#include <ATen/MemoryOverlap.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <queue>

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

// A tensor's bytes as runs without gaps, from the lowest address to the highest.
class Runs {
 public:
  explicit Runs(const ByteSpan& span) : span_(span), address_(span.begin), bytes_(span.tensor().element_size()) {
    const at::Tensor& tensor = span.tensor();
    for (int64_t d = 0; d < tensor.dim(); ++d)
      if (tensor.size(d) > 1) dims_.push_back({tensor.size(d), static_cast<uintptr_t>(tensor.stride(d)) * bytes_});
    std::sort(dims_.begin(), dims_.end(), [](const Dim& a, const Dim& b) { return a.step_bytes > b.step_bytes; });
    for (; !dims_.empty() && dims_.back().step_bytes == bytes_; dims_.pop_back()) bytes_ *= dims_.back().size;
    if (!ascend()) sort();
  }

  const ByteSpan& span() const { return span_; }
  uintptr_t begin() const { return sorted_.empty() ? address_ : sorted_.back(); }
  uintptr_t end() const { return begin() + bytes_; }

  // True for slices and transposes of contiguous tensors: there each step leads beyond what all smaller ones together
  // can reach, so no two runs meet.
  bool ascend() const {
    uintptr_t reach_bytes = bytes_;
    for (auto dim = dims_.rbegin(); dim != dims_.rend(); ++dim) {
      if (dim->step_bytes < reach_bytes) return false;
      reach_bytes += (dim->size - 1) * dim->step_bytes;
    }
    return true;
  }

  // False behind the last one.
  bool advance() {
    if (!sorted_.empty()) {
      sorted_.pop_back();
      return !sorted_.empty();
    }
    for (auto dim = dims_.rbegin(); dim != dims_.rend(); ++dim) {
      address_ += dim->step_bytes;
      if (++dim->at < dim->size) return true;
      address_ -= dim->size * dim->step_bytes;
      dim->at = 0;
    }
    return false;
  }

 private:
  struct Dim {
    int64_t size;
    uintptr_t step_bytes;
    int64_t at = 0;
  };

  void sort() {
    std::vector<uintptr_t> begins;
    do begins.push_back(address_);
    while (advance());
    std::sort(begins.begin(), begins.end(), std::greater<>());
    sorted_ = std::move(begins);
  }

  const ByteSpan& span_;
  std::vector<Dim> dims_;  // from the largest step to the smallest
  uintptr_t address_;
  uintptr_t bytes_;
  std::vector<uintptr_t> sorted_;  // what is left, the lowest last, where steps lead back
};

[[noreturn]] void refuse(const ByteSpan& one, const ByteSpan& other) {
  TORCH_CHECK_VALUE(one.lists != other.lists || one.rank != other.rank || one.index != other.index, one.where(),
                    " overlaps itself (shape ", one.tensor().sizes(), ", strides ", one.tensor().strides(),
                    "); every element needs memory of its own: keep a .contiguous() copy and pass that");
  TORCH_CHECK_VALUE(false, other.where(), " shares memory with ", one.where(),
                    "; every tensor needs memory of its own, or results would overwrite each other: keep a .clone() "
                    "of one of them and reduce that");
}

// Goes through the runs of all tensors at once, by their addresses: two that meet come one after the other.
void check_exactly(const std::vector<ByteSpan>& cluster) {
  std::vector<Runs> all(cluster.begin(), cluster.end());
  if (all.size() == 1 && all.front().ascend()) return;
  const auto later = [](const Runs* a, const Runs* b) { return a->begin() > b->begin(); };
  std::priority_queue<Runs*, std::vector<Runs*>, decltype(later)> next(later);
  for (Runs& runs : all) next.push(&runs);
  const Runs* before = &all.front();
  for (uintptr_t end = 0; !next.empty();) {
    Runs* const lowest = next.top();
    next.pop();
    if (lowest->begin() < end) {
      const auto [one, other] = std::minmax<const Runs*>({before, lowest});
      refuse(one->span(), other->span());
    }
    before = lowest;
    end = lowest->end();
    if (lowest->advance()) next.push(lowest);
  }
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
    const bool all_dense = std::all_of(spans.begin() + first, spans.begin() + next, dense);
    if (all_dense && next > first + 1) refuse(spans[first], spans[first + 1]);
    if (!all_dense) check_exactly({spans.begin() + first, spans.begin() + next});
  }
}

}  // namespace fastreduce
