// send and recv, as torch names them: Gloo moves the tensor, and if it fails we say which rank is the cause.
#include <exception>

#include "processes/backend.h"
#include "processes/checks.h"
#include "processes/gloo.h"
#include "processes/items.h"

namespace fastreduce {
namespace {

using c10d::OpType;

constexpr int kAnyRank = -1;

void check_passed(const char* call, const Tensors& tensors) {
  TORCH_CHECK_VALUE(tensors.size() == 1, call, " of ", tensors.size(), " tensors; want one");
  check_on_cpu(call, tensors);
  check_tensors(tensors);
}

class PassWork final : public c10d::Work {
 public:
  using Moved = c10::intrusive_ptr<c10d::Work>;

  // `timeout` where wait() is told none; `failed` makes our words of Gloo's.
  PassWork(int rank, OpType type, Moved moved, std::chrono::milliseconds timeout,
           std::function<std::string(const std::string&)> failed)
      : Work(rank, type), moved_(std::move(moved)), timeout_(timeout), failed_(std::move(failed)) {}

  bool wait(std::chrono::milliseconds timeout) override {
    if (!isCompleted()) finish(end_of_gloo(timeout == kNoTimeout ? timeout_ : timeout));
    if (exception()) std::rethrow_exception(exception());
    return ended_;
  }

  int sourceRank() const override { return moved_->sourceRank(); }
  void abort() override { moved_->abort(); }
  uint64_t getSequencenumber() const override { return moved_->getSequencenumber(); }

 private:
  // What it threw.
  std::exception_ptr end_of_gloo(std::chrono::milliseconds timeout) {
    try {
      ended_ = moved_->wait(timeout);
    } catch (const std::exception& error) {
      return std::make_exception_ptr(c10::DistBackendError({__func__, __FILE__, __LINE__}, failed_(error.what())));
    }
    return nullptr;
  }

  const Moved moved_;
  const std::chrono::milliseconds timeout_;
  bool ended_ = false;  // false if it was aborted
  const std::function<std::string(const std::string&)> failed_;
};

}  // namespace

void ProcessBackend::check_peer(const char* call, int peer) const {
  TORCH_CHECK_VALUE(peer >= 0 && peer < getSize() && peer != getRank(), call, " rank ", peer, " on rank ", getRank(),
                    "; want another rank, below ", getSize());
}

std::string ProcessBackend::rank_name(int rank) const {
  return machines_ ? machines_->rank_name(rank) : group_.name(rank);
}

std::string ProcessBackend::called(const char* name, const at::Tensor& tensor, int tag) const {
  return std::string(name) + " of " + words_of(tensor) + ", tag " + std::to_string(tag) + ", on rank " + group_.name();
}

// Gloo's words say only which connection has closed.
std::string ProcessBackend::failed_passing(const std::string& call, int peer, const std::string& gloo) const {
  std::vector<int> awaited;
  for (int here = 0; here < group_.size(); ++here)
    if (peer == kAnyRank || peer == (machines_ ? machines_->number_of(here) : here)) awaited.push_back(here);
  const std::string lost = group_.lost_soon(awaited);
  return call + ": " + (lost.empty() ? "" : lost + ": ") + gloo;
}

ProcessBackend::Work ProcessBackend::pass(OpType type, const std::string& call, int peer,
                                          const std::function<Work()>& begin) {
  // Whoever has the work may wait for it when the group is gone.
  const c10::weak_intrusive_ptr<ProcessBackend> backend(
      c10::intrusive_ptr<ProcessBackend>::unsafe_reclaim_from_nonowning(this));
  const auto failed = [=](const std::string& gloo) {
    const auto living = backend.lock();
    return living ? living->failed_passing(call, peer, gloo) : call + ": " + gloo;
  };
  try {
    return c10::make_intrusive<PassWork>(getRank(), type, begin(), options_->timeout, failed);
  } catch (const c10::Error&) {  // of what the caller has passed
    throw;
  } catch (const std::exception& error) {
    C10_THROW_ERROR(DistBackendError, failed(error.what()));
  }
}

ProcessBackend::Work ProcessBackend::send(Tensors& tensors, int to, int tag) {
  check_passed("send", tensors);
  check_peer("send to", to);
  Tensors sent = bytes_of(Usable().read(tensors, c10d::ReduceOp::SUM));
  const std::string call = called("send", tensors[0], tag) + " to rank " + rank_name(to);
  return pass(OpType::SEND, call, to, [&] { return rest_->send(sent, to, tag); });
}

ProcessBackend::Work ProcessBackend::take(OpType type, const Tensors& tensors, int from, int tag,
                                          const std::function<Work(Tensors&)>& begin) {
  check_passed("recv", tensors);
  check_contiguous("recv", tensors);
  if (from != kAnyRank) check_peer("recv from", from);
  Tensors taken = bytes_of(tensors);
  const std::string call =
      called("recv", tensors[0], tag) + " from " + (from == kAnyRank ? "any rank" : "rank " + rank_name(from));
  return pass(type, call, from, [&] { return begin(taken); });
}

ProcessBackend::Work ProcessBackend::recv(Tensors& tensors, int from, int tag) {
  return take(OpType::RECV, tensors, from, tag, [&](Tensors& taken) { return rest_->recv(taken, from, tag); });
}

ProcessBackend::Work ProcessBackend::recvAnysource(Tensors& tensors, int tag) {
  return take(OpType::RECVANYSOURCE, tensors, kAnyRank, tag,
              [&](Tensors& taken) { return rest_->recvAnysource(taken, tag); });
}

}  // namespace fastreduce
