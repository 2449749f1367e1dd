#include "processes/machines.h"

#include "call.h"
#include "processes/flags.h"
#include "programs.h"

namespace fastreduce {
namespace {

// While one chunk is between machines, the next is reduced inside: many chunks hide more, few cost fewer round trips.
// Of 256 KiB to 4 MiB, 1 MiB was the best at 1 Gbit/s and 2 MiB at 5 Gbit/s, for 4 and 16 MiB: 0.9 of the time with
// 4 MiB (two network namespaces on 2 cores of an AMD EPYC, family 25, 2026-11-24, with other work on them).
constexpr int64_t kChunkBytes = 2 << 20;

RankPlan plan_of(Collective collective, const Group& group) {
  return RankPlan(schedule_of({collective, "auto", group.size(), 0, "processes", 0}), group.rank());
}

c10d::ReduceOp between(const c10d::ReduceOp& op) {
  const bool sums = op.op_ == c10d::ReduceOp::AVG || op.op_ == c10d::ReduceOp::PREMUL_SUM;
  return sums ? c10d::ReduceOp(c10d::ReduceOp::SUM) : op;
}

// How long a machine may take to answer after something has failed, and the tag of question and answer.
constexpr std::chrono::milliseconds kAnswer{3000};
constexpr int kTag = 0x66617374;

}  // namespace

struct Machines::Chunk {
  at::Tensor tensor;
  Arithmetic kernel;
  c10d::ReduceOp op;
  Announcement announcement;
  std::chrono::milliseconds timeout;
  std::chrono::milliseconds timeout_inside;
  at::Tensor shard{};  // this rank's
  c10::intrusive_ptr<c10d::Work> across{};
};

Machines::Machines(Group& group, Settings settings)
    : group_(group),
      settings_(std::move(settings)),
      reduce_scatter_(plan_of(Collective::reduce_scatter, group)),
      all_gather_(plan_of(Collective::all_gather, group)) {}

void Machines::allreduce(const at::Tensor& tensor, const c10d::ReduceOp& op, const Announcement& announcement,
                         std::chrono::milliseconds timeout) {
  const at::Tensor flat = tensor.view({-1});
  const Arithmetic kernel = *find_arithmetic(flat.scalar_type(), op_of(between(op)));
  const int64_t chunk_elems = kChunkBytes / flat.element_size();
  std::optional<Chunk> before;
  for (int64_t begin = 0; begin < flat.numel(); begin += chunk_elems) {
    const int64_t elems = std::min(chunk_elems, flat.numel() - begin);
    // Who waits inside for one that waits outside must not be the first to give up.
    Chunk chunk{flat.narrow(0, begin, elems), kernel, op, announcement, timeout, timeout + 2 * kAnswer};
    announce(chunk.tensor, chunk.announcement);
    run_inside(reduce_scatter_, chunk);
    start_across(chunk);
    if (before) finish(*before);
    before = chunk;
  }
  if (before) finish(*before);
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

void Machines::start_across(Chunk& chunk) {
  if (!chunk.shard.defined()) return;
  std::vector<at::Tensor> tensors = {chunk.shard};
  c10d::AllreduceOptions options;
  options.reduceOp = between(chunk.op);
  options.timeout = chunk.timeout;
  chunk.across = settings_.across->allreduce(tensors, options);
}

void Machines::finish(Chunk& chunk) {
  try {
    if (chunk.across) chunk.across->wait();
  } catch (const std::exception& error) {
    const std::string what =
        std::string(chunk.announcement.text.data()) + " between machines: " + silent_machines() + ": " + error.what();
    group_.fail(what);
    throw GroupError(what);
  }
  if (chunk.op.op_ == c10d::ReduceOp::AVG && chunk.shard.defined())
    chunk.shard.div_(static_cast<int64_t>(settings_.names.size()) * group_.size());
  run_inside(all_gather_, chunk);
}

// All ranks that wait for the silent machine fail at about the same time, and each asks all. A machine of which one
// rank answers is there.
std::string Machines::silent_machines() const {
  using Work = c10::intrusive_ptr<c10d::Work>;
  const auto tried = [](const auto& body) {
    try {
      return body();
    } catch (const std::exception&) {
      return decltype(body())();
    }
  };
  std::vector<at::Tensor> byte = {at::zeros(1, at::kByte)};
  std::vector<Work> questions;  // kept until all is over
  std::vector<std::vector<Work>> answers(settings_.names.size());
  for (size_t machine = 0; machine < answers.size(); ++machine)
    for (int rank : settings_.ranks[machine]) {
      if (rank == settings_.all->getRank()) continue;
      questions.push_back(tried([&] { return settings_.all->send(byte, rank, kTag); }));
      answers[machine].push_back(tried([&] { return settings_.all->recv(byte, rank, kTag); }));
    }
  std::string silent;
  const Clock::time_point deadline = Clock::now() + kAnswer;
  for (size_t machine = 0; machine < answers.size(); ++machine) {
    bool answered = static_cast<int>(machine) == settings_.across->getRank();
    for (const Work& answer : answers[machine]) {
      const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now());
      answered =
          answered || (answer && tried([&] { return answer->wait(std::max(left, std::chrono::milliseconds(1))); }));
    }
    if (!answered) silent += (silent.empty() ? "" : ", ") + settings_.names[machine];
  }
  return silent.empty() ? "all machines answer" : "no answer from " + silent;
}

}  // namespace fastreduce
