// Queues work, runs it where there are no workers, and waits for it.
#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "runtime.h"

namespace virtual_cuda {
namespace {

// Nobody could go on: the process ends.
[[noreturn]] void hang() {
  for (const std::string& text : all_violations()) std::fprintf(stderr, "violation: %s\n", text.c_str());
  std::fprintf(stderr, "violation: hang: the host waits for what never finishes\n");
  std::_Exit(97);
}

}  // namespace

Queue* Runtime::new_queue(int device) {
  queues.push_back(std::make_unique<Queue>(device, checker.new_timeline(), rng(), config.max_delay_us, !config.linear));
  return queues.back().get();
}

// What is queued still runs.
void Runtime::retire(Queue* queue) {
  checker.retire_timeline(queue->timeline);
  queue->close();
}

Node* Runtime::enqueue(Queue& queue, std::shared_ptr<const Work> work, std::vector<Node*> after, const Clock& clock) {
  join(queue.clock, clock);
  checker.tick(queue.timeline, queue.clock);
  Node& node = nodes.emplace_back();
  node.skip = work && !checker.check(*work, queue.timeline, queue.clock);
  if (work) count(*work);
  node.work = std::move(work);
  std::erase(after, nullptr);
  node.after = std::move(after);
  queue.push(&node);
  return &node;
}

// A kernel's data passes through its device; a copy's goes from its source to its destination.
void Runtime::count(const Work& work) {
  ++work_queued;
  const auto add = [&](int from, int to, const Access& moved) {
    if (from != to) traffic.bytes[{from, to}] += static_cast<int64_t>(moved.end - moved.begin);
  };
  const auto place = [&](const Access& access) { return memory.device_of(access.begin); };
  if (work.kernel) {
    ++traffic.kernels;
    for (const Access& access : work.accesses)
      access.writes ? add(work.device, place(access), access) : add(place(access), work.device, access);
  } else if (work.accesses.size() == 2) {  // no memset
    ++traffic.copies;
    add(place(work.accesses[0]), place(work.accesses[1]), work.accesses[0]);
  }
}

void Runtime::wait(Node* node) {
  if (!config.linear)
    node->done.wait();
  else
    while (!node->done.is_set()) step();
}

bool Runtime::is_done(Node* node) {
  if (node == nullptr || node->done.is_set()) return true;
  if (config.linear) step(false);
  return node->done.is_set();
}

void Runtime::wait_queue(Queue& queue) {
  wait(queue.last());
  checker.host_waited(queue.timeline, queue.clock);
}

void Runtime::wait_all() {
  for (auto& queue : queues) wait_queue(*queue);
  forget_done();
}

void Runtime::let_hung_work_finish() {
  for (auto& queue : queues) queue->let_finish();
}

// Runs one item, at random among those that CUDA could run now.
void Runtime::step(bool must) {
  std::vector<Queue*> ready;
  for (auto& queue : queues)
    if (queue->ready() != nullptr) ready.push_back(queue.get());
  if (ready.empty()) {
    if (must) hang();
    return;
  }
  Queue& chosen = *ready.at(static_cast<size_t>(rng.below(static_cast<int64_t>(ready.size()))));
  Node* node = chosen.ready();
  chosen.pop();
  const bool verify = config.verify_writes && node->work && node->work->kernel && !node->skip;
  Snapshot before = verify ? Snapshot(memory) : Snapshot();
  run_node(*node, rng, false);
  if (verify) before.compare(*node->work, memory, checker);
}

// Nodes are kept for those who may still wait for them. Without workers it is known when nobody will:
// a test that runs 10,000 orders would keep millions.
void Runtime::forget_done() {
  release_what_is_done();
  std::erase_if(queues, [](const auto& queue) { return queue->retired && queue->last()->done.is_set(); });
  const bool idle = std::all_of(queues.begin(), queues.end(), [](const auto& q) { return q->empty(); });
  if (!config.linear || !idle || nodes.size() < 4096) return;
  for (auto& [handle, event] : events.all()) {
    if (event->node == nullptr) continue;
    event->time_ns = event->node->time_ns;
    event->node = nullptr;
  }
  for (auto& [handle, exec] : execs.all()) exec->last = nullptr;
  for (auto& queue : queues) queue->forget_done();
  nodes.clear();
}

}  // namespace virtual_cuda
