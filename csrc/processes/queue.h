// Runs the calls of one group one after the other: in the caller's thread if it would wait anyhow, else in one thread
// of the queue.
#pragma once

#include <unistd.h>

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>

#include <torch/csrc/distributed/c10d/Work.hpp>

#include "processes/completions.h"
#include "processes/devices.h"
#include "processes/items.h"

namespace fastreduce {

// Declared first in functions that Python calls. Once Python is ending, its destructor keeps every thread but the one
// that ends Python: such a thread would end the process by SIGABRT when it comes back to Python.
struct StaysAtTheEnd {
  ~StaysAtTheEnd();
};

// The process that has begun a call has the threads that go on with it. In a fork of that process, `check` raises.
class GoesOnHere {
 public:
  void check(const std::string& call) const;

 private:
  const pid_t pid_ = getpid();
};

class CallWork final : public c10d::Work {
 public:
  CallWork(int rank, c10d::OpType type, const char* title, const Tensors& inputs, Tensors outputs, uint64_t sequence,
           std::optional<CallStream> stream, std::shared_ptr<Completions> completions, std::function<void()> body);

  void run();  // never throws: wait() raises the errors; when it returns, GPUs too have done their work

  bool wait(std::chrono::milliseconds timeout) override;
  std::vector<at::Tensor> result() override { return outputs_; }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override { return future_; }
  uint64_t getSequencenumber() const override { return sequence_; }
  float getDuration() const override { return call_.duration_ms(); }
  uint64_t getCompletionKey() const { return call_.key(); }  // overrides that of torch 2.15 and later

 private:
  const GoesOnHere goes_on_here_;
  const char* const title_;
  Tensors outputs_;
  uint64_t sequence_;
  std::optional<CallStream> stream_;  // of tensors on a GPU
  const std::shared_ptr<Completions> completions_;
  Completions::Call call_;
  std::function<void()> body_;
  c10::intrusive_ptr<c10::ivalue::Future> future_;
};

// Held by shared_ptr: a callback of a call, which runs in the queue's own thread, may be the last to hold the group.
class Queue : public std::enable_shared_from_this<Queue> {
 public:
  // `abort` makes the calls that wait raise soon, and does not wait itself.
  static std::shared_ptr<Queue> make(std::function<void()> abort);
  ~Queue() { close(); }

  // Calls run in the order in which they are submitted. `waits` says that the caller will wait at once: then the call
  // runs in this thread, if no other call is before it.
  void submit(const c10::intrusive_ptr<CallWork>& work, bool waits);
  // In a queue's own thread, which a callback may make wait: runs the queue's calls up to this one, since no other
  // thread would.
  static void serve_until(const CallWork& work);
  // Returns when all calls submitted so far are done. Later ones raise.
  void close();
  void abort();
  // Ends all queues of the process before the interpreter ends: a thread that enters Python later, for a callback or to
  // free a tensor, would end the process by SIGABRT. A daemon thread that comes back from a call is kept for the same
  // reason.
  static void end_all();

 private:
  explicit Queue(std::function<void()> abort) : abort_(std::move(abort)) {}
  void serve();
  bool serves_here() const;
  void run_first(std::unique_lock<std::mutex>& lock);

  const pid_t pid_ = getpid();
  std::mutex mutex_;
  std::function<void()> abort_;  // empty once the queue is closed
  std::condition_variable changed_;
  std::deque<c10::intrusive_ptr<CallWork>> waiting_;
  bool busy_ = false;
  bool closed_ = false;
  std::thread thread_;  // from the first asynchronous call on
  std::thread::id server_;
};

}  // namespace fastreduce
