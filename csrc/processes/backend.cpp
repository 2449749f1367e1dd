#include "processes/backend.h"

#include <c10/util/hash.h>

#include <sstream>

#include "processes/checks.h"
#include "processes/flags.h"
#include "processes/heap.h"
#include "processes/items.h"
#include "programs.h"
#include "rows.h"

namespace fastreduce {
namespace {

using c10d::OpType;

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

}  // namespace

std::function<void(const std::function<void()>&)> without_gil;

// ---- a group's life

ProcessBackend::ProcessBackend(const Settings& settings, const Exchange& exchange,
                               std::optional<Machines::Settings> machines)
    : Backend(settings.rest->getRank(), settings.rest->getSize()),
      options_(c10::make_intrusive<Options>("fastreduce", settings.timeout)),
      rest_(settings.rest),
      group_(settings.rank, settings.names,
             std::min(settings.shared_bytes / settings.names.size() / 2, kStagingBytes)) {
  group_.join(exchange(group_.invitation()));
  Announcement first;
  first.describe("the first meeting");
  group_.agree(first, settings.timeout);
  if (machines) machines_ = std::make_unique<Machines>(group_, *std::move(machines));
  init();
}

ProcessBackend::~ProcessBackend() {
  group_.abort();
  without_gil([this] { queue_.close(); });
}

at::Tensor ProcessBackend::allocateTensor(long size, at::TensorOptions options) {
  TORCH_CHECK_VALUE(options.device().is_cpu(), "memory is asked for on ", options.device(),
                    "; the backend fastreduce has shared memory of the CPU only");
  return Heap::instance().allocate({size}, c10::typeMetaToScalarType(options.dtype()));
}

void ProcessBackend::abort() {
  group_.abort();
  group_.fail("rank " + group_.name() + " called abort");
  rest_->abort();
}

void ProcessBackend::shutdown() {
  queue_.close();
  group_.leave();
  rest_->shutdown();
}

// ---- calls

template <class CallOptions>
ProcessBackend::Kind ProcessBackend::kind(OpType type, const char* title, Collective collective,
                                          const CallOptions& options) const {
  Kind kind{type, title, collective, c10d::ReduceOp::SUM, 0, options.timeout, !options.asyncOp};
  if constexpr (requires { options.reduceOp; }) kind.op = options.reduceOp;
  if constexpr (requires { options.rootRank; }) kind.root = options.rootRank;
  if (kind.timeout == c10d::kUnsetTimeout) kind.timeout = options_->timeout;
  return kind;
}

ProcessBackend::Work ProcessBackend::enqueue(const Kind& kind, const Tensors& inputs, Tensors outputs,
                                             std::function<void()> body) {
  auto work = c10::make_intrusive<CallWork>(getRank(), kind.type, kind.title, inputs, std::move(outputs), ++sequence_,
                                            std::move(body));
  queue_.submit(work, kind.waits);
  return work;
}

ProcessBackend::Work ProcessBackend::submit(const Kind& kind, Lists inputs, Lists outputs) {
  const Tensors read = flat(inputs), written = flat(outputs);
  Tensors all = read;
  all.insert(all.end(), written.begin(), written.end());
  const at::ScalarType type = check_tensors(all);
  arithmetic_of(kind.collective, op_of(kind.op), type);
  check_factor(kind.op, type);
  if (by_shard(kind.collective)) check_lengths(kind.collective, getSize(), inputs, outputs);
  TORCH_CHECK_VALUE(kind.root >= 0 && kind.root < getSize(), "root is ", kind.root, "; want a rank below ", getSize());
  // Here, and not in the other thread: a program that is new is built in Python.
  const RankPlan& plan = plan_of(kind, elems_of(written) * static_cast<int64_t>(at::elementSize(type)));
  return enqueue(kind, read.empty() ? written : read, written,
                 [this, kind, &plan, inputs = std::move(inputs), outputs = std::move(outputs)] {
    execute(kind, plan, inputs, outputs);
  });
}

const RankPlan& ProcessBackend::plan_of(const Kind& kind, int64_t nbytes) {
  const bool sized = kind.collective == Collective::allreduce;
  auto schedule =
      schedule_of({kind.collective, "auto", group_.size(), kind.root, "processes", sized ? size_class(nbytes) : 0});
  const std::lock_guard lock(plans_mutex_);
  auto& plan = plans_[schedule->id];
  if (!plan) plan = std::make_unique<RankPlan>(schedule, group_.rank());
  return *plan;
}

void ProcessBackend::execute(const Kind& kind, const RankPlan& plan, const Lists& inputs, const Lists& outputs) {
  const c10::AutoGradMode no_grad(false);
  const at::ScalarType type = outputs.front().front().scalar_type();
  const Arithmetic kernel = arithmetic_of(kind.collective, op_of(kind.op), type);
  const int64_t elem_bytes = static_cast<int64_t>(at::elementSize(type)) / kernel.per_elem;
  const int64_t shards = plan.schedule->shards;
  FlagsCall call{plan,        kernel.dtype, kernel.op,
                 elem_bytes,  {},           announcement(kind, plan.fingerprint, inputs, outputs),
                 kind.timeout};
  Usable usable;
  Lists kept;  // the memory that the items point to
  for (size_t i = 0; i < outputs.size(); ++i) {
    Item& item = call.items.emplace_back();
    const auto all = [&](const Tensors& tensors) {
      const int64_t elems = elems_of(tensors) * kernel.per_elem;
      item.part_elems = by_shard(kind.collective) ? elems / shards : part_elems(elems, shards, elem_bytes);
      return all_shards(kept.emplace_back(tensors), shards, item.part_elems, kernel, elem_bytes);
    };
    const auto mine = [&](const Tensors& tensors) {
      return one_shard(kept.emplace_back(tensors), shards, getRank(), kernel);
    };
    if (kind.collective == Collective::all_gather) {
      item.in = mine(usable.read(inputs[i], kind.op));
      item.out = all(usable.written(outputs[i]));
    } else if (kind.collective == Collective::reduce_scatter) {
      item.in = all(usable.read(inputs[i], kind.op));
      item.out = mine(usable.written(outputs[i]));
    } else {
      item.out = item.in = all(usable.written(outputs[i], kind.op));
    }
  }
  // Peers may work on one tensor, unless this rank writes its result over what they still read.
  const bool overwrites = kind.collective == Collective::allreduce && plan.schedule->buffers > getSize();
  const Tensors& read = kept.front();
  if (outputs.size() == 1 && read.size() == 1 && !overwrites) announce(read[0], call.announcement);
  run_flags(group_, call);
  usable.write_back();
}

ProcessBackend::Work ProcessBackend::across(const Kind& kind, const Tensors& tensors) {
  const at::ScalarType type = check_tensors(tensors);
  arithmetic_of(kind.collective, op_of(kind.op), type);
  check_factor(kind.op, type);
  return enqueue(kind, tensors, tensors, [this, kind, tensors] {
    const c10::AutoGradMode no_grad(false);
    Usable usable;
    const Announcement mine = announcement(kind, 0, {}, each_alone(tensors));
    for (const at::Tensor& tensor : usable.written(tensors, kind.op))
      machines_->allreduce(tensor, kind.op, mine, kind.timeout);
    usable.write_back();
  });
}

Announcement ProcessBackend::announcement(const Kind& kind, uint64_t program, const Lists& inputs,
                                          const Lists& outputs) {
  const Lists& lists = kind.collective == Collective::all_gather ? inputs : outputs;
  const at::Tensor& first = lists.front().front();
  Announcement mine;
  mine.fingerprint = c10::get_hash(static_cast<int>(kind.collective), static_cast<int>(kind.op.op_), kind.root,
                                   static_cast<int>(first.scalar_type()), program, lists.size());
  for (const Tensors& list : lists) {
    mine.fingerprint = c10::hash_combine(mine.fingerprint, list.front().dim());
    for (int64_t size : list.front().sizes()) mine.fingerprint = c10::hash_combine(mine.fingerprint, size);
  }
  if (mine.fingerprint != last_.fingerprint) {
    std::ostringstream text;
    text << name_of(kind.collective);
    if (!moves_only(kind.collective))
      text << " (" << (kind.op.op_ == c10d::ReduceOp::PREMUL_SUM ? "premul_sum" : name_of(op_of(kind.op))) << ")";
    text << " of " << first.scalar_type() << " " << first.sizes();
    if (lists.size() > 1) text << " and " << lists.size() - 1 << " more";
    if (kind.collective == Collective::broadcast || kind.collective == Collective::reduce)
      text << ", root " << kind.root;
    mine.describe(text.str());
    last_ = mine;
  }
  return last_;
}

template <class CallOptions>
ProcessBackend::Work ProcessBackend::delegate(OpType type, const char* title, const CallOptions& options,
                                              Tensors outputs, std::function<Work()> call) {
  const Kind of = kind(type, title, Collective::allreduce, options);
  Announcement mine;
  mine.describe(title + std::strlen("fastreduce:"));
  mine.fingerprint = c10::get_hash(std::string(mine.text.data()));
  return enqueue(of, outputs, outputs, [this, mine, timeout = of.timeout, call = std::move(call)] {
    group_.agree(mine, timeout);
    if (const Work work = call()) work->wait();
  });
}

// ---- torch's names; over several machines, rest_ serves all but allreduce

ProcessBackend::Work ProcessBackend::allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) {
  if (tensors.size() == 1 && tensors[0].layout() == at::kSparse)  // gradients of embeddings
    return machines_ ? rest_->allreduce(tensors, options)
                     : delegate(OpType::_ALLREDUCE_SPARSE, "fastreduce:sparse all_reduce", options, tensors,
                                [=, this]() mutable { return rest_->allreduce(tensors, options); });
  const Kind of = kind(OpType::ALLREDUCE, "fastreduce:all_reduce", Collective::allreduce, options);
  return machines_ ? across(of, tensors) : submit(of, {}, each_alone(tensors));
}

ProcessBackend::Work ProcessBackend::allreduce_coalesced(Tensors& tensors,
                                                         const c10d::AllreduceCoalescedOptions& options) {
  const Kind of = kind(OpType::ALLREDUCE_COALESCED, "fastreduce:all_reduce", Collective::allreduce, options);
  return machines_ ? across(of, tensors) : submit(of, {}, each_alone(tensors));
}

ProcessBackend::Work ProcessBackend::reduce(Tensors& tensors, const c10d::ReduceOptions& options) {
  if (machines_) return rest_->reduce(tensors, options);
  return submit(kind(OpType::REDUCE, "fastreduce:reduce", Collective::reduce, options), {}, each_alone(tensors));
}

ProcessBackend::Work ProcessBackend::broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) {
  if (machines_) return rest_->broadcast(tensors, options);
  return submit(kind(OpType::BROADCAST, "fastreduce:broadcast", Collective::broadcast, options), {},
                each_alone(tensors));
}

ProcessBackend::Work ProcessBackend::allgather(Lists& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) {
  if (machines_) return rest_->allgather(outputs, inputs, options);
  return submit(kind(OpType::ALLGATHER, "fastreduce:all_gather", Collective::all_gather, options), each_alone(inputs),
                outputs);
}

ProcessBackend::Work ProcessBackend::_allgather_base(at::Tensor& output, at::Tensor& input,
                                                     const c10d::AllgatherOptions& options) {
  if (machines_) return rest_->_allgather_base(output, input, options);
  return submit(kind(OpType::_ALLGATHER_BASE, "fastreduce:all_gather", Collective::all_gather, options), {{input}},
                {{output}});
}

// One list for each rank, of one tensor for each input.
ProcessBackend::Work ProcessBackend::allgather_coalesced(Lists& outputs, Tensors& inputs,
                                                         const c10d::AllgatherOptions& options) {
  if (machines_) return rest_->allgather_coalesced(outputs, inputs, options);
  Lists by_input(inputs.size());
  for (const Tensors& of_rank : outputs) {
    TORCH_CHECK_VALUE(of_rank.size() == inputs.size(), "a list of outputs has ", of_rank.size(), " tensors; want ",
                      inputs.size(), ", one for each input");
    for (size_t i = 0; i < inputs.size(); ++i) by_input[i].push_back(of_rank[i]);
  }
  return submit(kind(OpType::ALLGATHER_COALESCED, "fastreduce:all_gather", Collective::all_gather, options),
                each_alone(inputs), by_input);
}

ProcessBackend::Work ProcessBackend::allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                                     const c10d::AllgatherOptions& options) {
  if (machines_) return rest_->allgather_into_tensor_coalesced(outputs, inputs, options);
  return submit(kind(OpType::ALLGATHER_COALESCED, "fastreduce:all_gather", Collective::all_gather, options),
                each_alone(inputs), each_alone(outputs));
}

ProcessBackend::Work ProcessBackend::reduce_scatter(Tensors& outputs, Lists& inputs,
                                                    const c10d::ReduceScatterOptions& options) {
  if (machines_) return rest_->reduce_scatter(outputs, inputs, options);
  return submit(kind(OpType::REDUCE_SCATTER, "fastreduce:reduce_scatter", Collective::reduce_scatter, options), inputs,
                each_alone(outputs));
}

ProcessBackend::Work ProcessBackend::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                                          const c10d::ReduceScatterOptions& options) {
  if (machines_) return rest_->_reduce_scatter_base(output, input, options);
  return submit(kind(OpType::_REDUCE_SCATTER_BASE, "fastreduce:reduce_scatter", Collective::reduce_scatter, options),
                {{input}}, {{output}});
}

ProcessBackend::Work ProcessBackend::reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                                     const c10d::ReduceScatterOptions& options) {
  if (machines_) return rest_->reduce_scatter_tensor_coalesced(outputs, inputs, options);
  return submit(
      kind(OpType::REDUCE_SCATTER_TENSOR_COALESCED, "fastreduce:reduce_scatter", Collective::reduce_scatter, options),
      each_alone(inputs), each_alone(outputs));
}

// ---- without programs

ProcessBackend::Work ProcessBackend::barrier(const c10d::BarrierOptions& options) {
  if (machines_) return rest_->barrier(options);
  return delegate(OpType::BARRIER, "fastreduce:barrier", options, {}, [] { return Work(); });
}

ProcessBackend::Work ProcessBackend::gather(Lists& outputs, Tensors& inputs, const c10d::GatherOptions& options) {
  if (machines_) return rest_->gather(outputs, inputs, options);
  return delegate(OpType::GATHER, "fastreduce:gather", options, flat(outputs),
                  [=, this]() mutable { return rest_->gather(outputs, inputs, options); });
}

ProcessBackend::Work ProcessBackend::scatter(Tensors& outputs, Lists& inputs, const c10d::ScatterOptions& options) {
  if (machines_) return rest_->scatter(outputs, inputs, options);
  return delegate(OpType::SCATTER, "fastreduce:scatter", options, outputs,
                  [=, this]() mutable { return rest_->scatter(outputs, inputs, options); });
}

ProcessBackend::Work ProcessBackend::alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& options) {
  if (machines_) return rest_->alltoall(outputs, inputs, options);
  return delegate(OpType::ALLTOALL, "fastreduce:all_to_all", options, outputs,
                  [=, this]() mutable { return rest_->alltoall(outputs, inputs, options); });
}

ProcessBackend::Work ProcessBackend::alltoall_base(at::Tensor& output, at::Tensor& input,
                                                   std::vector<int64_t>& output_sizes,
                                                   std::vector<int64_t>& input_sizes,
                                                   const c10d::AllToAllOptions& options) {
  if (machines_) return rest_->alltoall_base(output, input, output_sizes, input_sizes, options);
  return delegate(OpType::ALLTOALL_BASE, "fastreduce:all_to_all", options, {output}, [=, this]() mutable {
    return rest_->alltoall_base(output, input, output_sizes, input_sizes, options);
  });
}

void ProcessBackend::monitoredBarrier(const c10d::BarrierOptions& options, bool wait_all) {
  rest_->monitoredBarrier(options, wait_all);
}

}  // namespace fastreduce
