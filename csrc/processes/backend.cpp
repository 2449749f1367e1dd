#include "processes/backend.h"

#include <c10/core/InferenceMode.h>

#include <sstream>

#include "fingerprint.h"
#include "processes/caller.h"
#include "processes/checks.h"
#include "processes/flags.h"
#include "processes/gloo.h"
#include "processes/heap.h"
#include "processes/items.h"
#include "rows.h"

namespace fastreduce {

std::function<c10::intrusive_ptr<c10d::Backend>(const Membership&)> make_group;
std::function<void(const std::function<void()>&)> without_gil;

namespace {

// Rounds towards zero, as NCCL does.
void divide(const Tensors& integers, int ranks) {
  const c10::InferenceMode writes_any;  // also tensors of a caller that is in this mode
  for (const at::Tensor& tensor : integers) tensor.div_(ranks, "trunc");
}

}  // namespace

// ---- a group's life

ProcessBackend::ProcessBackend(const Settings& settings, const Exchange& exchange,
                               std::optional<Machines::Settings> machines)
    : Backend(settings.rest->getRank(), settings.rest->getSize()),
      all_names_(settings.all_names),
      shared_bytes_(settings.shared_bytes),
      options_(c10::make_intrusive<Options>("fastreduce", settings.timeout)),
      rest_(settings.rest),
      group_(settings.rank, settings.names, std::min(settings.shared_bytes / settings.names.size() / 2, kStagingBytes),
             settings.own_cores),
      devices_(group_) {
  group_.join(exchange(group_.invitation()));
  Announcement first;
  first.describe("the rendezvous");
  group_.agree(first, settings.timeout);
  if (machines) machines_ = std::make_unique<Machines>(group_, *std::move(machines));
  init();
}

ProcessBackend::~ProcessBackend() {
  without_gil([this] {
    queue_->abort();
    queue_->close();
    if (!group_.forked() && !group_.failed_at_all().empty()) {
      std::vector<c10::intrusive_ptr<c10d::Backend>> stuck;
      if (machines_) stuck.push_back(machines_->across());
      machines_.reset();
      stuck.push_back(std::move(rest_));
      let_go(std::move(stuck));
    }
  });
  if (!group_.forked()) return;
  // Gloo's destructor would wait for its threads, which a fork does not have.
  rest_.release();
  machines_.release();
}

void ProcessBackend::check_root(int64_t root) const {
  TORCH_CHECK_VALUE(root >= 0 && root < getSize(), "root is ", root, "; want a rank below ", getSize());
}

at::Tensor ProcessBackend::allocateTensor(long size, at::TensorOptions options) {
  const at::ScalarType type = c10::typeMetaToScalarType(options.dtype());
  if (!c10::isComplexType(type)) return memory_for_calls(size, options);
  return memory_for_calls(2 * size, options.dtype(c10::toRealValueType(type)));
}

at::Tensor ProcessBackend::memory_for_calls(long size, at::TensorOptions options) {
  if (!options.device().is_cpu()) return at::empty({size}, options);
  return Heap::instance().allocate({size}, c10::typeMetaToScalarType(options.dtype()));
}

c10::intrusive_ptr<c10d::Backend> ProcessBackend::split(const c10::intrusive_ptr<c10d::Store>& store,
                                                        const std::vector<int>& ranks,
                                                        const c10::intrusive_ptr<Options>& options) {
  const auto mine = std::find(ranks.begin(), ranks.end(), getRank());
  if (mine == ranks.end()) return nullptr;
  std::vector<std::string> names;
  for (int rank : ranks) names.push_back(all_names_[rank]);
  return make_group({store, static_cast<int>(mine - ranks.begin()), options->timeout, std::move(names), shared_bytes_});
}

void ProcessBackend::abort() {
  const std::string why = "rank " + group_.name() + " called abort";
  group_.abort(why);
  if (machines_) machines_->give_up(why);
  rest_->abort();
}

void ProcessBackend::give_up(const std::string& why) {
  group_.give_up(why);
  if (machines_) machines_->give_up(why);
}

void ProcessBackend::shutdown() {
  queue_->close();
  group_.leave();
  rest_->shutdown();
}

// ---- calls

ProcessBackend::Work ProcessBackend::enqueue(const Kind& kind, const Tensors& inputs, Tensors outputs,
                                             std::function<void()> body) {
  if (auto caller = caller_in_python())
    body = [this, caller = std::move(*caller), body = std::move(body)] { group_.called_from(caller), body(); };
  if (chaos_) body = chaos_->around(std::move(body), group_, kind.timeout);
  if (machines_) body = [this, body = std::move(body)] { tell_machines(body); };
  std::optional<CallStream> stream;
  if (!inputs.empty() && !inputs.front().is_cpu()) stream.emplace(inputs.front().device(), kind.waits);
  auto work = c10::make_intrusive<CallWork>(getRank(), kind.type, kind.title, inputs, std::move(outputs), ++sequence_,
                                            std::move(stream), completions_, std::move(body));
  queue_->submit(work, kind.waits);
  return work;
}

void ProcessBackend::tell_machines(const std::function<void()>& call) {
  try {
    call();
    machines_->call_ended();
  } catch (const std::exception&) {
    if (const std::string why = group_.failed_at_all(); !why.empty()) machines_->give_up(why);
    machines_->call_ended();
    throw;
  }
}

bool ProcessBackend::keeps(const Kind& kind) const {
  return kind.collective == Collective::reduce && kind.root != getRank();
}

ProcessBackend::Work ProcessBackend::submit(const Kind& kind, Lists inputs, Lists outputs) {
  const Tensors read = flat(inputs), written = flat(outputs);
  Tensors all = read;
  all.insert(all.end(), written.begin(), written.end());
  const Arithmetic kernel = check_call(kind.collective, kind.op, all);
  check_written(written);
  if (by_shard(kind.collective)) check_lengths(kind.collective, getSize(), inputs, outputs);
  if (inputs.empty()) check_apart(std::stoi(group_.name()), written);
  check_root(kind.root);
  // In the caller's thread, since a new program is built by Python.
  const int64_t nbytes = elems_of(written) * static_cast<int64_t>(written.front().element_size());
  const RankSchedule* rank_schedule = machines_ ? nullptr : &rank_schedule_of(kind, nbytes);
  const bool divides = kind.op.op_ == c10d::ReduceOp::AVG && kernel.op == Op::sum && !keeps(kind);
  return enqueue(
      kind, read.empty() ? written : read, written,
      [this, kind, kernel, rank_schedule, divides, inputs = std::move(inputs), outputs = std::move(outputs)] {
    if (rank_schedule)
      execute(kind, kernel, *rank_schedule, inputs, outputs);
    else
      across(kind, inputs, outputs);
    if (divides) divide(flat(outputs), getSize());
  });
}

std::pair<ProcessBackend::Lists, ProcessBackend::Lists> ProcessBackend::memory_of(const Kind& kind, const Lists& inputs,
                                                                                  const Lists& outputs,
                                                                                  Usable& usable) const {
  Lists from, to;
  for (const Tensors& list : inputs) from.push_back(usable.read(list, kind.op));
  for (const Tensors& list : outputs) {
    const c10d::ReduceOp op = inputs.empty() ? kind.op : c10d::ReduceOp(c10d::ReduceOp::SUM);
    to.push_back(keeps(kind) ? usable.read(list, op) : usable.written(list, op));
  }
  return {std::move(from), std::move(to)};
}

const RankSchedule& ProcessBackend::rank_schedule_of(const Kind& kind, int64_t nbytes) {
  auto schedule = schedule_of(question_of(kind.collective, group_.size(), kind.root, nbytes, algorithm_));
  const std::lock_guard lock(rank_schedules_mutex_);
  auto& rank_schedule = rank_schedules_[schedule->id];
  if (!rank_schedule) rank_schedule = std::make_unique<RankSchedule>(schedule, group_.rank());
  return *rank_schedule;
}

void ProcessBackend::execute(const Kind& kind, const Arithmetic& kernel, const RankSchedule& rank_schedule,
                             const Lists& inputs, const Lists& outputs) {
  const c10::InferenceMode writes_any;  // also tensors of a caller that is in this mode
  std::optional<Usable> usable;
  const auto ran = [&](bool reached) {
    return run(kind, kernel, rank_schedule, inputs, outputs, usable.emplace(reached));
  };
  const bool reached = outputs.front().front().is_cpu() || devices_.reach();
  group_.do_call(kind.timeout, [&] {
    if (!ran(reached)) ran(false);
  });
  usable->write_back();
}

bool ProcessBackend::run(const Kind& kind, const Arithmetic& kernel, const RankSchedule& rank_schedule,
                         const Lists& inputs, const Lists& outputs, Usable& usable) {
  const int64_t elem_bytes = static_cast<int64_t>(outputs.front().front().element_size()) / kernel.per_elem;
  const int64_t shards = rank_schedule.schedule->shards;
  FlagsCall call{rank_schedule, kernel.dtype, kernel.op,
                 elem_bytes,    {},           announcement(kind, rank_schedule.fingerprint, inputs, outputs),
                 kind.timeout};
  auto [from, to] = memory_of(kind, inputs, outputs, usable);  // alive until the end: items point into them
  const bool gathers = kind.collective == Collective::all_gather;
  if (by_shard(kind.collective) && in_the_way(gathers ? to : from, gathers ? from : to, getRank()))
    for (Tensors& list : from)
      for (at::Tensor& tensor : list) tensor = tensor.clone();
  for (size_t i = 0; i < outputs.size(); ++i) {
    Item& item = call.items.emplace_back();
    const auto all = [&](const Tensors& tensors) {
      const int64_t elems = elems_of(tensors) * kernel.per_elem;
      item.part_elems = by_shard(kind.collective) ? elems / shards : part_elems(elems, shards, elem_bytes);
      return all_shards(tensors, shards, item.part_elems, kernel, elem_bytes);
    };
    const auto mine = [&](const Tensors& tensors) { return one_shard(tensors, shards, getRank(), kernel); };
    if (!by_shard(kind.collective)) {
      item.out = item.in = all(to[i]);
    } else {
      item.in = gathers ? mine(from[i]) : all(from[i]);
      item.out = gathers ? all(to[i]) : mine(to[i]);
    }
  }
  // Peers may work on one tensor, unless this rank writes its result over what they still read.
  const bool overwrites = kind.collective == Collective::allreduce && rank_schedule.schedule->buffers > getSize();
  const Tensors& read = from.empty() ? to.front() : from.front();
  if (!read[0].is_cpu()) return devices_.run(call, read[0].device());
  if (outputs.size() == 1 && read.size() == 1 && !overwrites) announce(read[0], call.announcement);
  run_announced(group_, call, read[0]);
  return true;
}

Announcement ProcessBackend::announcement(const Kind& kind, uint64_t program, const Lists& inputs,
                                          const Lists& outputs) {
  const Lists& lists = kind.collective == Collective::all_gather ? inputs : outputs;
  const at::Tensor& first = lists.front().front();
  Announcement mine;
  Fingerprint fingerprint;
  fingerprint.add(kind.collective, kind.op.op_, kind.root, first.scalar_type(), first.device().type(), devices_.reach(),
                  program, lists.size());
  for (const Tensors& list : lists) {
    fingerprint.add(list.front().dim());
    for (int64_t size : list.front().sizes()) fingerprint.add(size);
  }
  mine.fingerprint = fingerprint.value();
  if (mine.fingerprint != last_.fingerprint) {
    std::ostringstream text;
    text << name_of(kind.collective);
    if (!moves_only(kind.collective))
      text << " (" << (kind.op.op_ == c10d::ReduceOp::PREMUL_SUM ? "premul_sum" : name_of(op_of(kind.op))) << ")";
    text << " of " << words_of(first);
    if (!first.is_cpu()) text << " on cuda" << (devices_.reach() ? "" : ", through the CPU's memory");
    if (lists.size() > 1)
      text << " and " << lists.size() - 1 << " more, " << elems_of(flat(lists)) << " elements in all";
    if (kind.collective == Collective::broadcast || kind.collective == Collective::reduce)
      text << ", root " << kind.root;
    mine.describe(text.str());
    last_ = mine;
  }
  return last_;
}

}  // namespace fastreduce
