// Who wants to know which calls have ended well: the flight recorder of torch 2.15 and later, which takes all others
// for calls that are stuck.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>

namespace fastreduce {

class Completions {
 public:
  class Call {
   public:
    // No other call of this process has it.
    uint64_t key() const { return key_; }
    void ends() { duration_ = Clock::now() - began_; }
    float duration_ms() const { return duration_.count(); }

   private:
    using Clock = std::chrono::steady_clock;
    static inline std::atomic<uint64_t> last_{0};
    const uint64_t key_ = ++last_;
    const Clock::time_point began_ = Clock::now();
    std::chrono::duration<float, std::milli> duration_{0};
  };

  using Hook = std::function<void(uint64_t key, float duration_ms)>;

  void add(int64_t id, Hook hook) {
    const std::lock_guard lock(mutex_);
    hooks_[id] = std::move(hook);
  }

  void remove(int64_t id) {
    const std::lock_guard lock(mutex_);
    hooks_.erase(id);
  }

  // Not under the lock: a hook takes locks of its own, under which it may be removed.
  void tell(const Call& call) {
    std::map<int64_t, Hook> hooks;
    {
      const std::lock_guard lock(mutex_);
      hooks = hooks_;
    }
    for (const auto& [id, hook] : hooks) hook(call.key(), call.duration_ms());
  }

 private:
  std::mutex mutex_;
  std::map<int64_t, Hook> hooks_;
};

}  // namespace fastreduce
