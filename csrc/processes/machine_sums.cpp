// An allreduce over several machines: by our programs inside each, by Gloo between them. Where Gloo cannot add, or
// gathers faster than it adds, it gathers the data and our kernels reduce it.
#include <algorithm>

#include "cpu/kernels.h"
#include "processes/flags.h"
#include "processes/gloo.h"
#include "processes/machines.h"

namespace fastreduce {
namespace {

// While one chunk is between machines, the next is reduced inside: many chunks hide more, few cost fewer round trips.
// Of 256 KiB to 4 MiB, 1 MiB was the best at 1 Gbit/s and 2 MiB at 5 Gbit/s, for 4 and 16 MiB: 0.9 of the time with
// 4 MiB (two network namespaces on 2 cores of an AMD EPYC, family 25, 2026-11-24, with other work on them).
constexpr int64_t kChunkBytes = 2 << 20;

// Up to how many bytes per rank are taken from all other machines in one step. Gloo's own sum moves fewer bytes, but in
// 2 (machines - 1) steps of 0.8 ms. A call that gathers so many took 0.7 to 1.3 times as long as one that leaves the
// sum to Gloo on 2 to 4 network namespaces at 1 Gbit/s, and 0.4 to 0.9 times at 5 Gbit/s; half as many, 0.4 to 1.0 and
// 0.4 to 0.7; twice as many, 1.2 to 1.7 and 0.6 to 1.2 (2 cores of an AMD EPYC, family 26, 2026-11-30).
constexpr int64_t kGatheredBytes = 256 << 10;

// The operation inside a machine. An average is divided once, by the last sum.
Op op_inside(const c10d::ReduceOp& op) { return op.op_ == c10d::ReduceOp::AVG ? Op::sum : op_of(op); }

// The dtype as which Gloo adds such elements. There is none for dtypes that it does not know or adds differently, as
// bools, which it wraps, and for operations other than the sum, of which it is not known what they make of NaN.
std::optional<at::ScalarType> gloo_adds(const Arithmetic& kernel) {
  if (kernel.op != Op::sum) return std::nullopt;
  switch (kernel.dtype) {
    case DType::f16: return at::kHalf;
    case DType::bf16: return at::kBFloat16;
    case DType::f32: return at::kFloat;
    case DType::f64: return at::kDouble;
    case DType::i32: return at::kInt;
    case DType::i64: return at::kLong;
    default: return std::nullopt;
  }
}

// `divisor` is that of an average whose sum this completes, else 1.
void reduce(const Arithmetic& kernel, const std::vector<const std::byte*>& from, std::byte* to, int64_t elems,
            int divisor) {
  const Reduce reduces = cpu_kernels().select(kernel.dtype, divisor > 1 ? Op::avg : kernel.op);
  reduces(from.data(), static_cast<int>(from.size()), &to, 1, elems * kernel.per_elem, divisor);
}

}  // namespace

// ---- small sums

void Machines::SmallSum::pack(std::byte* to) const {
  for (const at::Tensor& tensor : tensors)
    to = std::copy_n(static_cast<const std::byte*>(tensor.const_data_ptr()), tensor.nbytes(), to);
}

void Machines::SmallSum::unpack(const std::byte* from) const {
  for (const at::Tensor& tensor : tensors) {
    std::copy_n(from, tensor.nbytes(), static_cast<std::byte*>(tensor.mutable_data_ptr()));
    from += tensor.nbytes();
  }
}

void Machines::SmallSum::add(const std::vector<const std::byte*>& from, std::byte* to, int by) const {
  reduce(kernel, from, to, elems_of(tensors), by);
}

// ---- large sums

struct Machines::Chunk {
  at::Tensor tensor;
  Arithmetic kernel;
  int divisor;
  Announcement announcement;
  std::chrono::milliseconds timeout;
  std::chrono::milliseconds timeout_inside;
  at::Tensor shard{};     // this rank's, which it sums with those of its number in other machines
  at::Tensor gathered{};  // the same shard of all machines, if Gloo gathers it
  Work across{};
};

void Machines::allreduce(const Tensors& tensors, const c10d::ReduceOp& op, const Announcement& mine,
                         std::chrono::milliseconds timeout) {
  const at::Tensor& first = tensors.front();
  const Arithmetic kernel = *find_arithmetic(first.scalar_type(), op_inside(op));
  const int ranks = static_cast<int>(settings_.names.size()) * group_.size();
  const SmallSum sum{tensors, kernel, op.op_ == c10d::ReduceOp::AVG ? ranks : 1};
  if (elems_of(tensors) * first.element_size() <= kSmallBytes) return agree(mine, &sum, timeout);
  agree(mine, timeout);
  for (const at::Tensor& tensor : tensors) allreduce_in_chunks(tensor.view({-1}), kernel, sum.divisor, mine, timeout);
}

void Machines::allreduce_in_chunks(const at::Tensor& flat, const Arithmetic& kernel, int divisor,
                                   const Announcement& announcement, std::chrono::milliseconds timeout) {
  const int64_t chunk_elems = kChunkBytes / flat.element_size();
  std::optional<Chunk> before;
  for (int64_t begin = 0; begin < flat.numel(); begin += chunk_elems) {
    const int64_t elems = std::min(chunk_elems, flat.numel() - begin);
    // A rank that waits inside for a peer must not give up before that peer, which may be waiting for another machine.
    Chunk chunk{flat.narrow(0, begin, elems), kernel, divisor, announcement, timeout, timeout + 2 * kAnswer};
    announce(chunk.tensor, chunk.announcement);
    run_inside(reduce_scatter_, chunk);
    start_across(chunk);
    if (before) finish(*before);
    before = chunk;
  }
  if (before) finish(*before);
}

void Machines::run_inside(const RankSchedule& rank_schedule, Chunk& chunk) {
  const int64_t shards = group_.size(), elems = chunk.tensor.numel() * chunk.kernel.per_elem;
  const int64_t elem_bytes = chunk.tensor.element_size() / chunk.kernel.per_elem;
  FlagsCall call{rank_schedule,      chunk.kernel.dtype,  chunk.kernel.op, elem_bytes, {},
                 chunk.announcement, chunk.timeout_inside};
  Item& item = call.items.emplace_back();
  item.part_elems = part_elems(elems, shards, elem_bytes);
  const std::vector<Span> all = all_shards({chunk.tensor}, shards, item.part_elems, chunk.kernel, elem_bytes);
  std::vector<Span> mine = all;
  for (int64_t shard = 0; shard < shards; ++shard)
    if (shard != group_.rank()) mine[shard] = {nullptr, 0, all[shard].offset_elems};
  const bool gathers = &rank_schedule == &all_gather_;
  item.in = gathers ? mine : all;
  item.out = gathers ? all : mine;
  run_announced(group_, call, chunk.tensor);
  if (const Span& span = mine[group_.rank()]; span.elems > 0)
    chunk.shard = chunk.tensor.narrow(0, span.offset_elems / chunk.kernel.per_elem, span.elems / chunk.kernel.per_elem);
}

void Machines::start_across(Chunk& chunk) {
  if (!chunk.shard.defined()) return;
  const auto machines = static_cast<int64_t>(settings_.names.size());
  const auto bytes = static_cast<int64_t>(chunk.shard.nbytes());
  const auto type = gloo_adds(chunk.kernel);
  if (type && bytes * (machines - 1) > kGatheredBytes) {
    Tensors tensors = {memory_as(*type, chunk.shard)};
    c10d::AllreduceOptions options;
    options.timeout = chunk.timeout;
    chunk.across = settings_.across->allreduce(tensors, options);
    return;
  }
  chunk.gathered = memory_of_gloo(machines * bytes);
  chunk.across = send_to_all(memory_as(at::kByte, chunk.shard), chunk.gathered, chunk.timeout);
}

void Machines::finish(Chunk& chunk) {
  if (chunk.across) {
    wait_between(chunk.across);
    reduce_between(chunk);
  }
  run_inside(all_gather_, chunk);
}

void Machines::reduce_between(Chunk& chunk) {
  if (!chunk.gathered.defined()) {  // Gloo has summed
    if (chunk.divisor > 1) memory_as(*gloo_adds(chunk.kernel), chunk.shard).div_(chunk.divisor);
    return;
  }
  std::vector<const std::byte*> from;
  for (size_t machine = 0; machine < settings_.names.size(); ++machine)
    from.push_back(static_cast<const std::byte*>(chunk.gathered.const_data_ptr()) + machine * chunk.shard.nbytes());
  reduce(chunk.kernel, from, static_cast<std::byte*>(chunk.shard.mutable_data_ptr()), chunk.shard.numel(),
         chunk.divisor);
}

}  // namespace fastreduce
