#include "processes/machines.h"

#include "call.h"
#include "processes/flags.h"
#include "programs.h"

namespace fastreduce {
namespace {

// While one chunk is between machines, the next is reduced inside: many chunks hide more, few cost fewer round trips.
// Measured with 2 machines of 2 ranks, 1 Gbit/s between them: see benchmarks/processes.py.
constexpr int64_t kChunkBytes = 4 << 20;

RankPlan plan_of(Collective collective, const Group& group) {
  return RankPlan(schedule_of({collective, "auto", group.size(), 0, "processes", 0}), group.rank());
}

c10d::ReduceOp between(const c10d::ReduceOp& op) {
  const bool sums = op.op_ == c10d::ReduceOp::AVG || op.op_ == c10d::ReduceOp::PREMUL_SUM;
  return sums ? c10d::ReduceOp(c10d::ReduceOp::SUM) : op;
}

// How long a machine may take to answer after something has failed, and the tag of question and answer.
constexpr std::chrono::seconds kAnswer{3};
constexpr int kTag = 0x66617374;

}  // namespace

struct Machines::Chunk {
  at::Tensor tensor;
  Arithmetic kernel;
  c10d::ReduceOp op;
  Announcement announcement;
  std::chrono::milliseconds timeout;
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
    Chunk chunk{flat.narrow(0, begin, elems), kernel, op, announcement, timeout};
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
  FlagsCall call{plan, chunk.kernel.dtype, chunk.kernel.op, elem_bytes, {}, chunk.announcement, chunk.timeout};
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
    const std::string what = std::string(chunk.announcement.text.data()) + " between machines: " + silent_machines() +
                             ": " + error.what();
    group_.fail(what);
    throw GroupError(what);
  }
  if (chunk.op.op_ == c10d::ReduceOp::AVG && chunk.shard.defined())
    chunk.shard.div_(static_cast<int64_t>(settings_.names.size()) * group_.size());
  run_inside(all_gather_, chunk);
}

// Peers everywhere fail at about the same time, and all ask all.
std::string Machines::silent_machines() const {
  std::string silent;
  std::vector<c10::intrusive_ptr<c10d::Work>> questions(settings_.names.size()), answers(settings_.names.size());
  std::vector<at::Tensor> bytes = {at::zeros(1, at::kByte)};
  const auto tried = [](const auto& body) {
    try {
      body();
      return true;
    } catch (const std::exception&) {
      return false;
    }
  };
  for (size_t i = 0; i < questions.size(); ++i)
    if (settings_.peers[i] != settings_.all->getRank()) tried([&] {
        questions[i] = settings_.all->send(bytes, settings_.peers[i], kTag);
        answers[i] = settings_.all->recv(bytes, settings_.peers[i], kTag);
      });
  for (size_t i = 0; i < questions.size(); ++i) {
    if (settings_.peers[i] == settings_.all->getRank()) continue;
    const bool answered = answers[i] && tried([&] { answers[i]->wait(kAnswer); });
    if (!answered) silent += (silent.empty() ? "" : ", ") + settings_.names[i];
  }
  return silent.empty() ? "all machines answer" : "no answer from " + silent;
}

}  // namespace fastreduce
