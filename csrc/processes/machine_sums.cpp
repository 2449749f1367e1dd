// An allreduce over several machines: ours inside each, bytes through Gloo between them, which the kernels sum.
#include <algorithm>
#include <utility>

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

// Inside a machine. An average is divided once, in the last sum.
Op op_inside(const c10d::ReduceOp& op) { return op.op_ == c10d::ReduceOp::AVG ? Op::sum : op_of(op); }

}  // namespace

struct Machines::Chunk {
  at::Tensor tensor;
  Arithmetic kernel;
  c10d::ReduceOp op;
  Announcement announcement;
  std::chrono::milliseconds timeout;
  std::chrono::milliseconds timeout_inside;
  at::Tensor shard{};     // this rank's, which it sums with those of its number in other machines
  at::Tensor received{};  // of each machine as many bytes
  Work across{};

  // Each machine sums one part of the shard, of so many bytes; the last parts may be shorter, or empty.
  int64_t part_bytes(int64_t machines) const {
    const int64_t elems = (shard.numel() + machines - 1) / machines;
    return elems * static_cast<int64_t>(shard.element_size());
  }
  int64_t part_bytes(int64_t machine, int64_t machines) const {
    const int64_t all = static_cast<int64_t>(shard.nbytes()), begin = machine * part_bytes(machines);
    return std::clamp<int64_t>(all - begin, 0, part_bytes(machines));
  }
};

void Machines::allreduce(const at::Tensor& tensor, const c10d::ReduceOp& op, const Announcement& announcement,
                         std::chrono::milliseconds timeout) {
  const at::Tensor flat = tensor.view({-1});
  const Arithmetic kernel = *find_arithmetic(flat.scalar_type(), op_inside(op));
  const int64_t chunk_elems = kChunkBytes / flat.element_size();
  std::optional<Chunk> scattered, gathered;
  const auto advance = [&](std::optional<Chunk> next) {
    if (scattered) gather(*scattered);
    if (gathered) finish(*gathered);
    gathered = std::exchange(scattered, std::move(next));
  };
  for (int64_t begin = 0; begin < flat.numel(); begin += chunk_elems) {
    const int64_t elems = std::min(chunk_elems, flat.numel() - begin);
    // Who waits inside for one that waits outside must not be the first to give up.
    Chunk chunk{flat.narrow(0, begin, elems), kernel, op, announcement, timeout, timeout + 2 * kAnswer};
    announce(chunk.tensor, chunk.announcement);
    run_inside(reduce_scatter_, chunk);
    scatter(chunk);
    advance(chunk);
  }
  advance({});
  advance({});
}

void Machines::run_inside(const RankPlan& plan, Chunk& chunk) {
  const int64_t shards = group_.size(), elems = chunk.tensor.numel() * chunk.kernel.per_elem;
  const int64_t elem_bytes = chunk.tensor.element_size() / chunk.kernel.per_elem;
  FlagsCall call{plan, chunk.kernel.dtype, chunk.kernel.op, elem_bytes, {}, chunk.announcement, chunk.timeout_inside};
  Item& item = call.items.emplace_back();
  item.part_elems = part_elems(elems, shards, elem_bytes);
  const std::vector<Span> all = all_shards({chunk.tensor}, shards, item.part_elems, chunk.kernel, elem_bytes);
  std::vector<Span> mine = all;
  for (int64_t shard = 0; shard < shards; ++shard)
    if (shard != group_.rank()) mine[shard] = {nullptr, 0, all[shard].offset_elems};
  const bool gathers = &plan == &all_gather_;
  item.in = gathers ? mine : all;
  item.out = gathers ? all : mine;
  run_flags(group_, call);
  if (const Span& span = mine[group_.rank()]; span.elems > 0)
    chunk.shard = chunk.tensor.narrow(0, span.offset_elems / chunk.kernel.per_elem, span.elems / chunk.kernel.per_elem);
}

void Machines::scatter(Chunk& chunk) {
  if (!chunk.shard.defined()) return;
  const int64_t machines = settings_.across->getSize();
  const int64_t mine = chunk.part_bytes(settings_.across->getRank(), machines);
  std::vector<int64_t> sent, taken(machines, mine);
  for (int64_t machine = 0; machine < machines; ++machine) sent.push_back(chunk.part_bytes(machine, machines));
  chunk.received = memory_of_gloo(machines * chunk.part_bytes(machines));
  at::Tensor in = bytes_of({chunk.shard}).front(), out = chunk.received.narrow(0, 0, machines * mine);
  c10d::AllToAllOptions options;
  options.timeout = chunk.timeout;
  chunk.across = settings_.across->alltoall_base(out, in, taken, sent, options);
}

void Machines::gather(Chunk& chunk) {
  if (!chunk.across) return;
  wait_between(chunk.across, chunk.announcement);
  const int64_t machines = settings_.across->getSize();
  const int64_t mine = chunk.part_bytes(settings_.across->getRank(), machines);
  at::Tensor sum = memory_of_gloo(chunk.part_bytes(machines));
  std::vector<const std::byte*> from;
  for (int64_t machine = 0; machine < machines; ++machine)
    from.push_back(static_cast<const std::byte*>(chunk.received.const_data_ptr()) + machine * mine);
  std::byte* const to[] = {static_cast<std::byte*>(sum.mutable_data_ptr())};
  const bool divides = chunk.op.op_ == c10d::ReduceOp::AVG;
  const Reduce reduce = cpu_kernels().select(chunk.kernel.dtype, divides ? Op::avg : chunk.kernel.op);
  const int64_t elem_bytes = static_cast<int64_t>(chunk.shard.element_size()) / chunk.kernel.per_elem;
  reduce(from.data(), static_cast<int>(machines), to, 1, mine / elem_bytes,
         divides ? static_cast<int>(machines) * group_.size() : 1);
  std::vector<std::vector<at::Tensor>> out = {chunk.received.tensor_split(machines)};
  std::vector<at::Tensor> in = {sum};
  c10d::AllgatherOptions options;
  options.timeout = chunk.timeout;
  chunk.across = settings_.across->allgather(out, in, options);
}

void Machines::finish(Chunk& chunk) {
  if (chunk.across) {
    wait_between(chunk.across, chunk.announcement);
    std::memcpy(chunk.shard.mutable_data_ptr(), chunk.received.const_data_ptr(), chunk.shard.nbytes());
  }
  run_inside(all_gather_, chunk);
}

}  // namespace fastreduce
