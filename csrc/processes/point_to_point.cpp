// Sends and receives. Gloo moves the tensor, after what is sent has been compared with what is received. If Gloo fails,
// or waits for a message that will not come, the error names the rank that is the cause.
#include <algorithm>
#include <exception>
#include <mutex>

#include "processes/backend.h"
#include "processes/checks.h"
#include "processes/gloo.h"
#include "processes/items.h"

namespace fastreduce {
namespace {

using c10d::OpType;

constexpr int kAnyRank = -1;

// How long a message may be on its way when its sender has gone, or has failed in a later call (predicted).
constexpr std::chrono::seconds kOnItsWay{1};

void check_passed(const char* call, const Tensors& tensors) {
  TORCH_CHECK_VALUE(tensors.size() == 1, call, " of ", tensors.size(), " tensors; want one");
  check_on_cpu(call, tensors);
  check_tensors(tensors);
}

}  // namespace

// It may outlive its group: the caller may wait for it later.
class ProcessBackend::PassWork final : public c10d::Work {
 public:
  PassWork(OpType type, ProcessBackend& backend, std::string call, int peer)
      : Work(backend.getRank(), type),
        backend_(c10::intrusive_ptr<ProcessBackend>::unsafe_reclaim_from_nonowning(&backend)),
        completions_(backend.completions_),
        call_(std::move(call)),
        peer_(peer),
        timeout_(limited(backend.options_->timeout)) {}

  void begin(const std::function<ProcessBackend::Work()>& begin) { moved_ = begin(); }

  bool wait(std::chrono::milliseconds timeout) override {
    const StaysAtTheEnd stays;
    const std::lock_guard lock(one_waits_);
    if (!isCompleted()) {
      goes_on_here_.check(call_);
      const std::exception_ptr error = end_of_gloo(timeout == kNoTimeout ? timeout_ : limited(timeout));
      told_.ends();
      finish(error);
      if (ended_) completions_->tell(told_);
    }
    if (exception()) std::rethrow_exception(exception());
    return ended_;
  }

  int sourceRank() const override { return moved_->sourceRank(); }
  void abort() override { moved_->abort(); }
  uint64_t getSequencenumber() const override { return moved_->getSequencenumber(); }
  float getDuration() const override { return told_.duration_ms(); }
  uint64_t getCompletionKey() const { return told_.key(); }  // as CallWork's

 private:
  // Waits for Gloo, and returns the error of the call, if there is one.
  std::exception_ptr end_of_gloo(std::chrono::milliseconds timeout) {
    const auto backend = backend_.lock();
    const Clock::time_point end = Clock::now() + timeout;
    std::string why;
    try {
      std::optional<Watch::Waiter> waiter;
      if (backend) waiter.emplace(backend->watch_, look_at(*backend), [this] { moved_->abort(); });
      ended_ = moved_->wait(timeout);
      if (!ended_ && waiter) why = waiter->trouble();
      if (why.empty()) return nullptr;
    } catch (const std::exception& error) {
      const bool late = Clock::now() >= end;  // before looking for the cause, which takes time too
      why = backend ? backend->failed_passing(peer_, error.what()) : error.what();
      // At its timeout Gloo has closed all connections of this rank.
      if (backend && late) {
        why += backend->last_call_of(peer_, opType_ == OpType::SEND ? "received" : "sent");
        backend->give_up(call_ + " reached its timeout");
      }
    }
    return std::make_exception_ptr(c10::DistBackendError({__func__, __FILE__, __LINE__}, call_ + ": " + why));
  }

  // Looks whether the call waits in vain, and says why; empty while it does not.
  std::function<std::string()> look_at(const ProcessBackend& backend) const {
    return [this, &backend, gone_since = std::optional<Clock::time_point>()]() mutable {
      std::string why = backend.group_.given_up();
      if (!why.empty()) return why;
      why = backend.gone_passing(peer_);
      if (why.empty())
        gone_since.reset();
      else if (!gone_since)
        gone_since = Clock::now();
      return gone_since && Clock::now() - *gone_since > kOnItsWay ? why : "";
    };
  }

  const GoesOnHere goes_on_here_;
  const c10::weak_intrusive_ptr<ProcessBackend> backend_;
  const std::shared_ptr<Completions> completions_;
  Completions::Call told_;
  const std::string call_;
  const int peer_;
  const std::chrono::milliseconds timeout_;  // if wait() is given none
  ProcessBackend::Work moved_;
  bool ended_ = false;    // false if it was aborted
  std::mutex one_waits_;  // Gloo says only once that a message has ended
};

void ProcessBackend::check_peer(const char* call, int peer) const {
  TORCH_CHECK_VALUE(peer >= 0 && peer < getSize() && peer != getRank(), call, " rank ", peer, " on rank ", getRank(),
                    "; want another rank, below ", getSize());
}

std::string ProcessBackend::rank_name(int rank) const {
  return machines_ ? machines_->rank_name(rank) : group_.name(rank);
}

std::optional<int> ProcessBackend::number_here(int rank) const {
  for (int here = 0; here < group_.size(); ++here)
    if (rank == (machines_ ? machines_->number_of(here) : here)) return here;
  return std::nullopt;
}

std::string ProcessBackend::gone_passing(int peer) const {
  if (const std::string reason = group_.failed_at_all(); !reason.empty()) return reason;
  if (peer == kAnyRank) return group_.no_sender(machines_ == nullptr);
  const std::optional<int> here = number_here(peer);
  return here ? group_.lost(*here) : "";
}

std::string ProcessBackend::last_call_of(int peer, const char* not_done) const {
  const std::optional<int> here = number_here(peer);
  return here ? "; rank " + rank_name(peer) + " has not " + not_done + " it" + group_.last_call(*here) : "";
}

// Says which rank is the cause. Gloo's own error says only which connection has closed.
std::string ProcessBackend::failed_passing(int peer, const std::string& gloo) const {
  std::vector<int> awaited;
  if (const std::optional<int> here = number_here(peer)) awaited.push_back(*here);
  for (int here = 0; peer == kAnyRank && here < group_.size(); ++here) awaited.push_back(here);
  const std::string reason = group_.given_up();
  const std::string why = reason.empty() ? group_.lost_soon(awaited) : reason;
  return (why.empty() ? "" : why + ": ") + gloo;
}

ProcessBackend::Work ProcessBackend::pass(OpType type, const at::Tensor& tensor, int peer, int tag,
                                          const std::function<Work()>& begin) {
  TORCH_CHECK_VALUE(tag >= 0, "the tag is ", tag, "; want none below 0");
  const bool sends = type == OpType::SEND, any_rank = peer == kAnyRank;
  const std::string words = words_of(tensor);
  const std::string call = std::string(sends ? "send" : "recv") + " of " + words + ", tag " + std::to_string(tag) +
                           ", on rank " + group_.name() + (sends ? " to " : " from ") +
                           (any_rank ? "any rank" : "rank " + rank_name(peer));
  auto work = c10::make_intrusive<PassWork>(type, *this, call, peer);
  try {
    group_.check_usable();
    if (const std::string reason = group_.given_up(); !reason.empty()) throw GroupError(reason);
    labels_.hand_over({sends, number_here(peer), any_rank, tag, words}, [&] { work->begin(begin); });
  } catch (const c10::Error&) {  // about the caller's arguments
    throw;
  } catch (const GroupError& error) {
    C10_THROW_ERROR(DistBackendError, call + ": " + error.what());
  } catch (const std::exception& error) {
    C10_THROW_ERROR(DistBackendError, call + ": " + failed_passing(peer, error.what()));
  }
  return work;
}

ProcessBackend::Work ProcessBackend::send(Tensors& tensors, int to, int tag) {
  check_passed("send", tensors);
  check_peer("send to", to);
  Tensors sent = bytes_of(Usable().read(tensors, c10d::ReduceOp::SUM));
  return pass(OpType::SEND, tensors[0], to, tag, [&] { return rest_->send(sent, to, tag); });
}

ProcessBackend::Work ProcessBackend::receive(OpType type, const Tensors& tensors, int from, int tag,
                                             const std::function<Work(Tensors&)>& begin) {
  check_passed("recv", tensors);
  check_contiguous("recv", tensors);
  if (type == OpType::RECV) check_peer("recv from", from);
  Tensors received = bytes_of(tensors);
  return pass(type, tensors[0], from, tag, [&] { return begin(received); });
}

ProcessBackend::Work ProcessBackend::recv(Tensors& tensors, int from, int tag) {
  return receive(OpType::RECV, tensors, from, tag, [&](Tensors& to) { return rest_->recv(to, from, tag); });
}

ProcessBackend::Work ProcessBackend::recvAnysource(Tensors& tensors, int tag) {
  return receive(OpType::RECVANYSOURCE, tensors, kAnyRank, tag,
                 [&](Tensors& to) { return rest_->recvAnysource(to, tag); });
}

}  // namespace fastreduce
