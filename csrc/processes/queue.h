// Calls of one group, one after the other: in the caller's thread where it waits anyhow, else in one thread of ours.
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

// Where a call returns to Python, also by an exception.
struct StaysAtTheEnd {
  ~StaysAtTheEnd();
};

// Raises in a process that was forked from the one which has begun a call, and has the threads that go on with it.
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

  void run();  // never throws: errors come from wait(); when it returns, GPUs too have done their work

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

// In a shared_ptr: the last user may let go of a group in the thread itself, in the callback of a call.
class Queue : public std::enable_shared_from_this<Queue> {
 public:
  // `abort` lets the calls that wait raise soon; it does not wait itself.
  static std::shared_ptr<Queue> make(std::function<void()> abort);
  ~Queue() { close(); }

  // In order of the calls. `waits`: the caller will wait at once; if nothing is before it, the call runs here.
  void submit(const c10::intrusive_ptr<CallWork>& work, bool waits);
  // In the thread of a queue: runs its calls up to this one, which nobody else would serve.
  static void serve_until(const CallWork& work);
  // Returns when all calls so far are done; later ones raise.
  void close();
  void abort();
  // All queues of the process, before the interpreter ends: a thread that enters Python later, for a callback or to let
  // go of a tensor, would end the process by SIGABRT. So would a daemon thread that comes back from a call: it stays.
  static void end_all();

 private:
  explicit Queue(std::function<void()> abort) : abort_(std::move(abort)) {}
  void serve();
  bool serves_here() const;
  void run_first(std::unique_lock<std::mutex>& lock);

  const pid_t pid_ = getpid();
  std::mutex mutex_;
  std::function<void()> abort_;  // none once it is closed
  std::condition_variable changed_;
  std::deque<c10::intrusive_ptr<CallWork>> waiting_;
  bool busy_ = false;
  bool closed_ = false;
  std::thread thread_;  // from the first asynchronous call on
  std::thread::id server_;
};

}  // namespace fastreduce
