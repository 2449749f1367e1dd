#include "processes/watch.h"

#include <chrono>

namespace fastreduce {
namespace {

// A wait that begins wakes the watch only if none has begun within this time, so that small messages, one after the
// other, do not pay for it. A look takes some microseconds (predicted).
constexpr std::chrono::milliseconds kBetweenLooks{20};

}  // namespace

Watch::~Watch() {
  if (!thread_.joinable()) return;
  if (getpid() != pid_) {  // a fork has neither the thread nor, perhaps, a free mutex
    thread_.detach();
    changed_.release();  // its destructor would wait until that thread no longer does
    return;
  }
  {
    const std::lock_guard lock(mutex_);
    closed_ = true;
    changed_->notify_all();
  }
  thread_.join();
}

void Watch::serve() {
  std::unique_lock lock(mutex_);
  while (!closed_) {
    const uint64_t seen = waited_;
    for (Waiter* waiter : waiters_) {
      if (waiter->trouble_.empty()) waiter->trouble_ = waiter->look_();
      if (!waiter->trouble_.empty()) waiter->wake_();  // at each look: where two wait for one message, Gloo wakes one
    }
    changed_->wait_for(lock, kBetweenLooks, [this] { return closed_; });
    sleeps_ = waiters_.empty() && waited_ == seen;
    changed_->wait(lock, [this] { return closed_ || !sleeps_; });
  }
}

Watch::Waiter::Waiter(Watch& watch, std::function<std::string()> look, std::function<void()> wake)
    : watch_(watch), look_(std::move(look)), wake_(std::move(wake)) {
  if (getpid() != watch_.pid_) return;
  const std::lock_guard lock(watch_.mutex_);
  if (!watch_.thread_.joinable()) watch_.thread_ = std::thread([&watch] { watch.serve(); });
  watch_.waiters_.insert(this);
  ++watch_.waited_;
  if (!watch_.sleeps_) return;
  watch_.sleeps_ = false;
  watch_.changed_->notify_all();
}

Watch::Waiter::~Waiter() {
  if (getpid() != watch_.pid_) return;
  const std::lock_guard lock(watch_.mutex_);
  watch_.waiters_.erase(this);
}

std::string Watch::Waiter::trouble() const {
  if (getpid() != watch_.pid_) return "";
  const std::lock_guard lock(watch_.mutex_);
  return trouble_;
}

}  // namespace fastreduce
