// Wakes threads that wait in Gloo for a message that will not come. Gloo cannot be asked whether a message has come,
// and a wait that reaches its timeout breaks all of Gloo's connections; but another thread can end a single wait.
#pragma once

#include <unistd.h>

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>

namespace fastreduce {

class Watch {
 public:
  Watch() = default;
  ~Watch();

  // While a waiter lives, the watch calls `look`, which returns words if there is trouble; then it calls `wake`.
  // Neither function waits.
  class Waiter {
   public:
    Waiter(Watch& watch, std::function<std::string()> look, std::function<void()> wake);
    ~Waiter();
    std::string trouble() const;  // empty if there was none

   private:
    friend class Watch;
    Watch& watch_;
    const std::function<std::string()> look_;
    const std::function<void()> wake_;
    std::string trouble_;
  };

 private:
  void serve();

  const pid_t pid_ = getpid();
  mutable std::mutex mutex_;
  std::unique_ptr<std::condition_variable> changed_ = std::make_unique<std::condition_variable>();
  std::set<Waiter*> waiters_;
  uint64_t waited_ = 0;  // how many waiters there have been
  bool sleeps_ = false;  // until there is a waiter
  bool closed_ = false;
  std::thread thread_;  // started by the first waiter
};

}  // namespace fastreduce
