// The order in which work runs: nodes in first-in-first-out queues, each node also after some others.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "checker.h"

namespace virtual_cuda {

// SplitMix64, so that a seed gives the same order everywhere.
class Rng {
 public:
  using result_type = uint64_t;
  explicit Rng(uint64_t seed) : state_(seed) {}
  static constexpr uint64_t min() { return 0; }
  static constexpr uint64_t max() { return ~uint64_t{0}; }
  uint64_t operator()() {
    uint64_t z = (state_ += 0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
  }
  int64_t below(int64_t bound) { return static_cast<int64_t>((*this)() % static_cast<uint64_t>(bound)); }

 private:
  uint64_t state_;
};

// Set once, by one thread, and waited for by others. std::atomic::wait would do, but its shared table
// of waiters orders threads that have nothing to do with each other in ThreadSanitizer's eyes.
class Flag {
 public:
  void set();
  void wait();
  bool is_set() const { return value_.load(std::memory_order_acquire) == kSet; }

 private:
  enum : uint32_t { kUnset, kAwaited, kSet };
  std::atomic<uint32_t> value_{kUnset};
};

// A kernel, a copy or a memset; the same object runs again whenever a graph is launched.
struct Work {
  std::string name;
  int device;
  bool kernel;
  std::vector<Access> accesses;
  std::function<void(Rng& rng, bool threads)> run;
  bool hangs = false;
};

struct Node {
  std::shared_ptr<const Work> work;  // null: only waits
  bool skip = false;
  std::vector<Node*> after;
  int64_t time_ns = 0;
  Flag done;
  Flag has_next;
  Node* next = nullptr;  // null once has_next is set: the queue's end
};

class Queue {
 public:
  Queue(int device, int timeline, uint64_t seed, int max_delay_us, bool threaded);
  ~Queue();

  void push(Node* node);
  void close();  // the worker ends once it has run everything
  Node* last() const { return last_; }
  Node* ready() const;       // without a worker: the head, where it may run
  const Work* hung() const;  // without a worker: the head, if it never finishes
  void let_finish() { finishes_ = true; }
  bool empty() const { return waiting_.empty(); }
  void pop() { waiting_.pop_front(); }
  void forget_done() { last_ = &first_; }  // without a worker, and all done

  const int device;
  const int timeline;
  Clock clock;
  bool retired = false;

 private:
  void work();

  Rng rng_;
  const int max_delay_us_;
  bool finishes_ = false;  // even what hangs
  Node first_;             // already done
  Node* last_ = &first_;
  std::deque<Node*> waiting_;  // used without a worker, which follows Node::next instead
  std::thread worker_;
};

void run_node(Node& node, Rng& rng, bool threads);

}  // namespace virtual_cuda
