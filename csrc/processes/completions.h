// Tells hooks which calls have ended well. The flight recorder of torch 2.15 and later has such a hook, and takes every
// call of which it is not told for one that is stuck.
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
    // A number that no other call of this process has.
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

  // Hooks run without the lock: a hook takes locks of its own, and another thread may hold these while it removes the
  // hook.
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
