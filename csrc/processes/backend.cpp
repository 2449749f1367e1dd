#include "processes/backend.h"

#include <c10/util/hash.h>

#include <sstream>

#include "dtypes.h"
#include "processes/flags.h"
#include "processes/heap.h"
#include "programs.h"
#include "rows.h"

namespace fastreduce {
namespace {

using c10d::OpType;

Op op_of(const c10d::ReduceOp& op) {
  switch (op.op_) {
    case c10d::ReduceOp::AVG: return Op::avg;
    case c10d::ReduceOp::PRODUCT: return Op::prod;
    case c10d::ReduceOp::MIN: return Op::min;
    case c10d::ReduceOp::MAX: return Op::max;
    case c10d::ReduceOp::BAND: return Op::band;
    case c10d::ReduceOp::BOR: return Op::bor;
    case c10d::ReduceOp::BXOR: return Op::bxor;
    default: return Op::sum;  // PREMUL_SUM too: its factor is applied before
  }
}

bool moves_only(Collective collective) {
  return collective == Collective::broadcast || collective == Collective::all_gather;
}

// Collectives of tensors that hold one shard: their results are in other tensors than what they read.
bool by_shard(Collective collective) {
  return collective == Collective::all_gather || collective == Collective::reduce_scatter;
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

int64_t elems_of(const Tensors& tensors) {
  int64_t elems = 0;
  for (const at::Tensor& tensor : tensors) elems += tensor.numel();
  return elems;
}

Arithmetic arithmetic_of(Collective collective, Op op, at::ScalarType type) {
  if (moves_only(collective)) return moved(type);
  const auto found = find_arithmetic(type, op);
  TORCH_CHECK_VALUE(found, name_of(op), " of ", type, " tensors is not defined; defined are ", ops_of(type));
  return *found;
}

void check_factor(const c10d::ReduceOp& op, at::ScalarType type) {
  if (op.op_ != c10d::ReduceOp::PREMUL_SUM) return;
  TORCH_CHECK_VALUE(op.supplement_, "PREMUL_SUM without a factor");
  const bool multiplies = type == at::kHalf || type == at::kBFloat16 || type == at::kFloat || type == at::kDouble;
  TORCH_CHECK_VALUE(multiplies, "premul_sum of ", type,
                    " tensors is not defined; want float16, bfloat16, float32 or float64");
}

at::ScalarType check_tensors(const Tensors& tensors) {
  TORCH_CHECK_VALUE(!tensors.empty(), "no tensors; want at least one");
  for (const at::Tensor& tensor : tensors) {
    TORCH_CHECK_VALUE(tensor.device().is_cpu(), "a tensor is on ", tensor.device(),
                      "; the backend fastreduce serves CPU tensors: name another one for the rest, as in "
                      "init_process_group(\"cpu:fastreduce,cuda:nccl\")");
    TORCH_CHECK_VALUE(tensor.layout() == at::kStrided, "a tensor has layout ", tensor.layout(),
                      "; want dense tensors: pass tensor.to_dense()");
    TORCH_CHECK_VALUE(tensor.scalar_type() == tensors.front().scalar_type(), "tensors have dtypes ",
                      tensors.front().scalar_type(), " and ", tensor.scalar_type(), "; want one dtype for each call");
  }
  return tensors.front().scalar_type();
}

// Where all shards of each item must fit together.
void check_lengths(Collective collective, int ranks, const std::vector<Tensors>& inputs,
                   const std::vector<Tensors>& outputs) {
  const bool gather = collective == Collective::all_gather;
  const std::vector<Tensors>& whole = gather ? outputs : inputs;
  const std::vector<Tensors>& part = gather ? inputs : outputs;
  TORCH_CHECK_VALUE(whole.size() == part.size(), inputs.size(), " inputs and ", outputs.size(),
                    " outputs; want as many of both");
  for (size_t i = 0; i < whole.size(); ++i) {
    const int64_t elems = elems_of(part[i]);
    const bool one = whole[i].size() == 1 && whole[i][0].numel() == ranks * elems;
    bool list = whole[i].size() == static_cast<size_t>(ranks);
    for (const at::Tensor& tensor : whole[i]) list = list && tensor.numel() == elems;
    TORCH_CHECK_VALUE(one || list, gather ? "outputs" : "inputs", " have ", elems_of(whole[i]), " elements in ",
                      whole[i].size(), " tensors; want ", ranks, " times the ", elems, " of the ",
                      gather ? "input" : "output", ", in one tensor or in one of that length for each rank");
  }
}

// Of one tensor that holds all shards, or one tensor for each.
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

at::Tensor scaled(const at::Tensor& tensor, const c10d::ReduceOp& op) {
  const auto* factor = static_cast<const c10d::PreMulSumSupplement*>(op.supplement_.get());
  const at::Tensor& number = factor->tensor_factor;
  return (number.defined() ? tensor * number.reshape({}) : tensor * factor->double_factor).to(tensor.scalar_type());
}

// Tensors as the engine can walk them. Those that had to be copied are written back.
class Usable {
 public:
  Tensors read(const Tensors& tensors, const c10d::ReduceOp& op) {
    Tensors found;
    for (const at::Tensor& tensor : tensors) {
      const at::Tensor plain = tensor.resolve_conj().resolve_neg().contiguous();
      found.push_back(op.op_ == c10d::ReduceOp::PREMUL_SUM ? scaled(plain, op) : plain);
    }
    return found;
  }
  Tensors written(const Tensors& tensors, const c10d::ReduceOp& op = c10d::ReduceOp::SUM) {
    Tensors found = read(tensors, op);
    for (size_t i = 0; i < tensors.size(); ++i)
      if (!found[i].is_same(tensors[i])) copies_.emplace_back(tensors[i], found[i]);
    return found;
  }
  void write_back() const {
    for (const auto& [original, copy] : copies_) original.copy_(copy);
  }

 private:
  std::vector<std::pair<at::Tensor, at::Tensor>> copies_;
};

}  // namespace

std::function<void(const std::function<void()>&)> without_gil;

// ---- a group's life

ProcessBackend::ProcessBackend(int rank, const Settings& settings, const Exchange& exchange,
                               c10::intrusive_ptr<c10d::Backend> rest)
    : Backend(rank, static_cast<int>(settings.names.size())),
      options_(c10::make_intrusive<Options>("fastreduce", settings.timeout)),
      rest_(std::move(rest)),
      group_(rank, settings.names, settings.shared_bytes / settings.names.size() / 2) {
  group_.join(exchange(group_.invitation()));
  Announcement first;
  first.describe("the first meeting");
  group_.agree(first, settings.timeout);
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
      schedule_of({kind.collective, "auto", getSize(), kind.root, "processes", sized ? size_class(nbytes) : 0});
  const std::lock_guard lock(plans_mutex_);
  auto& plan = plans_[schedule->id];
  if (!plan) plan = std::make_unique<RankPlan>(schedule, getRank());
  return *plan;
}

void ProcessBackend::execute(const Kind& kind, const RankPlan& plan, const Lists& inputs, const Lists& outputs) {
  const c10::AutoGradMode no_grad(false);
  const at::ScalarType type = outputs.front().front().scalar_type();
  const Arithmetic kernel = arithmetic_of(kind.collective, op_of(kind.op), type);
  const int64_t elem_bytes = static_cast<int64_t>(at::elementSize(type)) / kernel.per_elem;
  const int64_t shards = plan.schedule->shards;
  FlagsCall call{plan,        kernel.dtype, kernel.op, elem_bytes, {}, announcement(kind, plan, inputs, outputs),
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
  if (outputs.size() == 1 && read.size() == 1 && !overwrites)
    if (const auto found = Heap::instance().find(read[0].data_ptr(), read[0].nbytes())) {
      call.announcement.memory = found->memory;
      call.announcement.offset = found->offset;
    }
  run_flags(group_, call);
  usable.write_back();
}

Announcement ProcessBackend::announcement(const Kind& kind, const RankPlan& plan, const Lists& inputs,
                                          const Lists& outputs) {
  const Lists& lists = kind.collective == Collective::all_gather ? inputs : outputs;
  const at::Tensor& first = lists.front().front();
  Announcement mine;
  mine.fingerprint = c10::get_hash(static_cast<int>(kind.collective), static_cast<int>(kind.op.op_), kind.root,
                                   static_cast<int>(first.scalar_type()), plan.fingerprint, lists.size());
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

// ---- torch's names

ProcessBackend::Work ProcessBackend::allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) {
  if (tensors.size() == 1 && tensors[0].layout() == at::kSparse)  // gradients of embeddings
    return delegate(OpType::_ALLREDUCE_SPARSE, "fastreduce:sparse all_reduce", options, tensors,
                    [=, this]() mutable { return rest_->allreduce(tensors, options); });
  return submit(kind(OpType::ALLREDUCE, "fastreduce:all_reduce", Collective::allreduce, options), {},
                each_alone(tensors));
}

ProcessBackend::Work ProcessBackend::allreduce_coalesced(Tensors& tensors,
                                                         const c10d::AllreduceCoalescedOptions& options) {
  return submit(kind(OpType::ALLREDUCE_COALESCED, "fastreduce:all_reduce", Collective::allreduce, options), {},
                each_alone(tensors));
}

ProcessBackend::Work ProcessBackend::reduce(Tensors& tensors, const c10d::ReduceOptions& options) {
  return submit(kind(OpType::REDUCE, "fastreduce:reduce", Collective::reduce, options), {}, each_alone(tensors));
}

ProcessBackend::Work ProcessBackend::broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) {
  return submit(kind(OpType::BROADCAST, "fastreduce:broadcast", Collective::broadcast, options), {},
                each_alone(tensors));
}

ProcessBackend::Work ProcessBackend::allgather(Lists& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) {
  return submit(kind(OpType::ALLGATHER, "fastreduce:all_gather", Collective::all_gather, options), each_alone(inputs),
                outputs);
}

ProcessBackend::Work ProcessBackend::_allgather_base(at::Tensor& output, at::Tensor& input,
                                                     const c10d::AllgatherOptions& options) {
  return submit(kind(OpType::_ALLGATHER_BASE, "fastreduce:all_gather", Collective::all_gather, options), {{input}},
                {{output}});
}

// One list for each rank, of one tensor for each input.
ProcessBackend::Work ProcessBackend::allgather_coalesced(Lists& outputs, Tensors& inputs,
                                                         const c10d::AllgatherOptions& options) {
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
  return submit(kind(OpType::ALLGATHER_COALESCED, "fastreduce:all_gather", Collective::all_gather, options),
                each_alone(inputs), each_alone(outputs));
}

ProcessBackend::Work ProcessBackend::reduce_scatter(Tensors& outputs, Lists& inputs,
                                                    const c10d::ReduceScatterOptions& options) {
  return submit(kind(OpType::REDUCE_SCATTER, "fastreduce:reduce_scatter", Collective::reduce_scatter, options), inputs,
                each_alone(outputs));
}

ProcessBackend::Work ProcessBackend::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                                          const c10d::ReduceScatterOptions& options) {
  return submit(kind(OpType::_REDUCE_SCATTER_BASE, "fastreduce:reduce_scatter", Collective::reduce_scatter, options),
                {{input}}, {{output}});
}

ProcessBackend::Work ProcessBackend::reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                                     const c10d::ReduceScatterOptions& options) {
  return submit(
      kind(OpType::REDUCE_SCATTER_TENSOR_COALESCED, "fastreduce:reduce_scatter", Collective::reduce_scatter, options),
      each_alone(inputs), each_alone(outputs));
}

// ---- without programs

ProcessBackend::Work ProcessBackend::barrier(const c10d::BarrierOptions& options) {
  return delegate(OpType::BARRIER, "fastreduce:barrier", options, {}, [] { return Work(); });
}

ProcessBackend::Work ProcessBackend::gather(Lists& outputs, Tensors& inputs, const c10d::GatherOptions& options) {
  return delegate(OpType::GATHER, "fastreduce:gather", options, flat(outputs),
                  [=, this]() mutable { return rest_->gather(outputs, inputs, options); });
}

ProcessBackend::Work ProcessBackend::scatter(Tensors& outputs, Lists& inputs, const c10d::ScatterOptions& options) {
  return delegate(OpType::SCATTER, "fastreduce:scatter", options, outputs,
                  [=, this]() mutable { return rest_->scatter(outputs, inputs, options); });
}

ProcessBackend::Work ProcessBackend::alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& options) {
  return delegate(OpType::ALLTOALL, "fastreduce:all_to_all", options, outputs,
                  [=, this]() mutable { return rest_->alltoall(outputs, inputs, options); });
}

ProcessBackend::Work ProcessBackend::alltoall_base(at::Tensor& output, at::Tensor& input,
                                                   std::vector<int64_t>& output_sizes,
                                                   std::vector<int64_t>& input_sizes,
                                                   const c10d::AllToAllOptions& options) {
  return delegate(OpType::ALLTOALL_BASE, "fastreduce:all_to_all", options, {output}, [=, this]() mutable {
    return rest_->alltoall_base(output, input, output_sizes, input_sizes, options);
  });
}

void ProcessBackend::monitoredBarrier(const c10d::BarrierOptions& options, bool wait_all) {
  rest_->monitoredBarrier(options, wait_all);
}

}  // namespace fastreduce
