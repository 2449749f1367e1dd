#include "queue.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <climits>

namespace virtual_cuda {

void Flag::set() {
  if (value_.exchange(kSet, std::memory_order_release) == kAwaited)
    syscall(SYS_futex, &value_, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
}

void Flag::wait() {
  while (!is_set()) {
    uint32_t expected = kUnset;
    // Relaxed: who waits tells nothing to who sets.
    value_.compare_exchange_strong(expected, kAwaited, std::memory_order_relaxed);
    if (expected != kSet) syscall(SYS_futex, &value_, FUTEX_WAIT_PRIVATE, kAwaited, nullptr, nullptr, 0);
  }
}

Queue::Queue(int device, int timeline, uint64_t seed, int max_delay_us, bool threaded)
    : device(device), timeline(timeline), rng_(seed), max_delay_us_(max_delay_us) {
  first_.done.set();
  if (threaded) worker_ = std::thread([this] { work(); });
}

Queue::~Queue() {
  if (!worker_.joinable()) return;
  if (!retired) close();
  worker_.join();
}

void Queue::push(Node* node) {
  if (worker_.joinable()) {
    last_->next = node;
    last_->has_next.set();
  } else {
    waiting_.push_back(node);
  }
  last_ = node;
}

void Queue::close() {
  retired = true;
  if (worker_.joinable()) last_->has_next.set();
}

const Work* Queue::hung() const {
  if (waiting_.empty() || !waiting_.front()->work || finishes_) return nullptr;
  return waiting_.front()->work->hangs ? waiting_.front()->work.get() : nullptr;
}

Node* Queue::ready() const {
  if (waiting_.empty()) return nullptr;
  Node* head = waiting_.front();
  if (hung() != nullptr) return nullptr;
  auto is_done = [](const Node* node) { return node->done.is_set(); };
  return std::all_of(head->after.begin(), head->after.end(), is_done) ? head : nullptr;
}

void Queue::work() {
  for (Node* node = &first_;;) {
    node->has_next.wait();
    node = node->next;
    if (node == nullptr) return;
    for (Node* n : node->after) n->done.wait();
    // Half of the work starts at once, the rest late: both make other orders than a sleep every time.
    if (max_delay_us_ > 0 && rng_.below(2) == 0)
      std::this_thread::sleep_for(std::chrono::microseconds(rng_.below(max_delay_us_ + 1)));
    run_node(*node, rng_, true);
  }
}

void run_node(Node& node, Rng& rng, bool threads) {
  if (node.work && !node.skip) node.work->run(rng, threads);
  node.time_ns = std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1);
  node.done.set();
}

}  // namespace virtual_cuda
