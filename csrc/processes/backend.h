// The backend "fastreduce" of torch.distributed: collectives between processes on one machine or several.
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "call.h"
#include "processes/chaos.h"
#include "processes/completions.h"
#include "processes/devices.h"
#include "processes/gloo.h"
#include "processes/labels.h"
#include "processes/machines.h"
#include "processes/queue.h"
#include "processes/rank_schedule.h"
#include "processes/watch.h"
#include "programs.h"

namespace fastreduce {

class ProcessBackend final : public c10d::Backend {
 public:
  using Work = c10::intrusive_ptr<c10d::Work>;
  using Lists = std::vector<Tensors>;
  // Takes this rank's words and returns those of all ranks, by rank.
  using Exchange = std::function<std::vector<std::string>(const std::string&)>;

  struct Settings {
    int rank;                            // this process's number among the ranks of this machine
    std::vector<std::string> names;      // of the ranks of this machine, as errors call them
    std::vector<std::string> all_names;  // of the ranks of all machines
    std::chrono::milliseconds timeout;
    size_t shared_bytes;  // the most shared memory that the ranks of this machine take together
    // A backend of all ranks of all machines, which does the calls for which there is no program here: point to point,
    // all-to-all, gather and scatter.
    c10::intrusive_ptr<c10d::Backend> rest;
    bool own_cores;  // as in Group
  };
  // Returns when all ranks of this machine have come, and throws if they have not within the timeout. `machines` is
  // given if there are several.
  ProcessBackend(const Settings& settings, const Exchange& exchange, std::optional<Machines::Settings> machines);
  ~ProcessBackend() override;

  const std::string getBackendName() const override { return "fastreduce"; }
  c10::intrusive_ptr<Options> getBackendOptions() override { return options_; }
  void setTimeout(std::chrono::milliseconds timeout) override { options_->timeout = timeout; }
  void setSequenceNumberForGroup() override {}  // it starts at 0 on every rank
  uint64_t getSequenceNumberForGroup() override { return sequence_; }
  bool supportsTensorAlloc(c10::DeviceIndex) override { return true; }
  // Called for DDP's buckets. A bucket of complex parameters holds real numbers, two for each element that DDP asks
  // for.
  at::Tensor allocateTensor(long size, at::TensorOptions options) override;
  // Called from Python, for example by FSDP2, where the size is meant as it is.
  static at::Tensor memory_for_calls(long size, at::TensorOptions options);
  // A group of some of these ranks.
  c10::intrusive_ptr<c10d::Backend> split(const c10::intrusive_ptr<c10d::Store>& store, const std::vector<int>& ranks,
                                          const c10::intrusive_ptr<Options>& options) override;
#ifdef C10D_BACKEND_HAS_HOOKS  // torch 2.15 and later
  // For torch's split_group. Where this says true of a group that is bound to a GPU, torch calls further functions,
  // which only NCCL has (torch/distributed/distributed_c10d.py, eager_connect_single_device). Before 2.15 it calls them
  // for any group with GPUs.
  bool supportsSplitting() const override { return !getBoundDeviceId(); }
  bool supportsCompletionHooks() const override { return true; }
  void registerCompletionHook(int64_t id, c10d::CompletionHook hook) override {
    completions_->add(id, [hook = std::move(hook)](uint64_t key, float duration_ms) { hook({key, duration_ms}); });
  }
  void unregisterCompletionHook(int64_t id) override { completions_->remove(id); }
#endif
  void abort() override;
  void shutdown() override;

  Work allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override;
  Work allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) override;
  Work reduce(Tensors& tensors, const c10d::ReduceOptions& options) override;
  Work broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override;
  Work allgather(Lists& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) override;
  Work _allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& options) override;
  Work allgather_coalesced(Lists& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) override;
  Work allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                       const c10d::AllgatherOptions& options) override;
  Work reduce_scatter(Tensors& outputs, Lists& inputs, const c10d::ReduceScatterOptions& options) override;
  Work _reduce_scatter_base(at::Tensor& output, at::Tensor& input, const c10d::ReduceScatterOptions& options) override;
  Work reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                       const c10d::ReduceScatterOptions& options) override;
  Work barrier(const c10d::BarrierOptions& options) override;

  Work gather(Lists& outputs, Tensors& inputs, const c10d::GatherOptions& options) override;
  Work scatter(Tensors& outputs, Lists& inputs, const c10d::ScatterOptions& options) override;
  Work alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& options) override;
  Work alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_sizes,
                     std::vector<int64_t>& input_sizes, const c10d::AllToAllOptions& options) override;
  Work send(Tensors& tensors, int to, int tag) override;
  Work recv(Tensors& tensors, int from, int tag) override;
  Work recvAnysource(Tensors& tensors, int tag) override;
  void monitoredBarrier(const c10d::BarrierOptions& options, bool wait_all) override;

 private:
  // The properties of a call that do not depend on its tensors.
  struct Kind {
    c10d::OpType type;
    const char* title;  // in profiles
    Collective collective;
    c10d::ReduceOp op;
    int64_t root;
    std::chrono::milliseconds timeout;
    bool waits;
  };
  template <class CallOptions>
  Kind kind(c10d::OpType type, const char* title, Collective collective, const CallOptions& options) const;

  // `inputs` and `outputs` have an entry for each tensor of the call: one whole tensor, or a list of one per rank. A
  // call in place has no inputs.
  Work submit(const Kind& kind, Lists inputs, Lists outputs);
  bool keeps(const Kind& kind) const;  // whether this rank's tensors stay as they are
  void execute(const Kind& kind, const Arithmetic& kernel, const RankSchedule& rank_schedule, const Lists& inputs,
               const Lists& outputs);
  // False if tensors on GPUs were to stay there and peers' GPUs cannot reach each other: then nothing was written, and
  // the tensors can go through the CPU's memory.
  bool run(const Kind& kind, const Arithmetic& kernel, const RankSchedule& rank_schedule, const Lists& inputs,
           const Lists& outputs, Usable& usable);
  // For groups on several machines.
  void across(const Kind& kind, const Lists& inputs, const Lists& outputs);
  void sum_across(const Kind& kind, const Announcement& mine, const Lists& from, const Lists& to);
  void move_in_a_sum(const Kind& kind, const Announcement& mine, const Lists& from, const Lists& to);
  Works moves_across(const Kind& kind, const Lists& from, const Lists& to);
  Announcement announcement(const Kind& kind, uint64_t program, const Lists& inputs, const Lists& outputs);
  // The tensors that are read and written in place of these.
  std::pair<Lists, Lists> memory_of(const Kind& kind, const Lists& inputs, const Lists& outputs, Usable& usable) const;
  const RankSchedule& rank_schedule_of(const Kind& kind, int64_t nbytes);

  // Calls that Gloo does, after all ranks have compared their `words` and, if there are any, their `lengths` (see
  // Group::tell_lengths). Dense tensors are moved as bytes, since Gloo does not know all dtypes.
  using Moves = std::function<void(Tensors& inputs, Tensors& outputs)>;
  Work delegate(const Kind& kind, const std::string& words, const Tensors& inputs, const Tensors& outputs, Moves moves,
                const std::vector<int64_t>& lengths = {});
  void agree(const Announcement& mine, const std::vector<int64_t>& lengths, std::chrono::milliseconds timeout);
  void hand_over(const Works& works);  // waits for Gloo, and looks whether the ranks still live
  // Sends and receives; `begin` gives the call to Gloo.
  class PassWork;
  Work pass(c10d::OpType type, const at::Tensor& tensor, int peer, int tag, const std::function<Work()>& begin);
  Work receive(c10d::OpType type, const Tensors& tensors, int from, int tag,
               const std::function<Work(Tensors&)>& begin);
  void check_peer(const char* call, int peer) const;
  std::string gone_passing(int peer) const;
  std::string failed_passing(int peer, const std::string& gloo) const;
  std::string last_call_of(int peer, const char* not_done) const;  // empty for a peer on another machine
  std::string rank_name(int rank) const;
  std::optional<int> number_here(int rank) const;  // among the ranks of this machine; none if it is on another one
  Work exchange(c10d::OpType type, const Tensors& inputs, const Tensors& outputs, const std::vector<int64_t>& sent,
                const std::vector<int64_t>& taken, const c10d::AllToAllOptions& options);
  Work sum_sparse(const at::Tensor& tensor, const c10d::AllreduceOptions& options);
  void check_root(int64_t root) const;
  Work enqueue(const Kind& kind, const Tensors& inputs, Tensors outputs, std::function<void()> body);
  void tell_machines(const std::function<void()>& call);  // makes the call, and tells other machines if it fails
  void give_up(const std::string& why);

  const std::shared_ptr<Completions> completions_ = std::make_shared<Completions>();
  const std::vector<std::string> all_names_;
  const size_t shared_bytes_;
  const std::unique_ptr<const Chaos> chaos_ = Chaos::of_environment();
  c10::intrusive_ptr<Options> options_;
  c10::intrusive_ptr<c10d::Backend> rest_;
  Group group_;
  DeviceGroup devices_;
  std::unique_ptr<Machines> machines_;
  const std::shared_ptr<Queue> queue_ = Queue::make([this] { group_.abort(); });
  std::atomic<uint64_t> sequence_{0};
  Announcement last_;  // reused, since most calls are like the one before
  // Read once, when the group is made: reading the environment takes the GIL, for which autograd's threads, in which
  // DDP makes its calls, may wait long.
  const std::string algorithm_ = algorithm_of_environment();
  std::mutex rank_schedules_mutex_;
  std::map<uint64_t, std::unique_ptr<RankSchedule>> rank_schedules_;  // by schedule
  Labels labels_{group_};
  Watch watch_;  // last, so destroyed first: it looks at the group
};

template <class CallOptions>
ProcessBackend::Kind ProcessBackend::kind(c10d::OpType type, const char* title, Collective collective,
                                          const CallOptions& options) const {
  Kind kind{type, title, collective, c10d::ReduceOp::SUM, 0, options.timeout, !options.asyncOp};
  if constexpr (requires { options.reduceOp; }) kind.op = options.reduceOp;
  if constexpr (requires { options.rootRank; }) kind.root = options.rootRank;
  if (kind.timeout == c10d::kUnsetTimeout) kind.timeout = options_->timeout;
  kind.timeout = limited(kind.timeout);
  return kind;
}

// How a rank joins a group.
struct Membership {
  c10::intrusive_ptr<c10d::Store> store;
  int rank;
  std::chrono::milliseconds timeout;
  std::vector<std::string> names;  // of all ranks
  size_t shared_bytes;
};
// Makes a group, as init_process_group does. Set while the extension is loaded.
extern std::function<c10::intrusive_ptr<c10d::Backend>(const Membership&)> make_group;

// Runs a function without the GIL, which threads may need in order to end meanwhile. Set while the extension is loaded.
extern std::function<void(const std::function<void()>&)> without_gil;

}  // namespace fastreduce
