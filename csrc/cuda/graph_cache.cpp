#include "cuda/graph_cache.h"

#include <algorithm>
#include <cstdio>

#include "cuda/environment.h"

namespace fastreduce {

bool graphs_wanted() {
  static const bool wanted = !is_set_to("FASTREDUCE_GRAPHS", "0");
  return wanted;
}

Fingerprint GraphCache::fingerprint_of(const Key& key) {
  Fingerprint fingerprint;
  for (uint64_t number : key) fingerprint.add(number);
  return fingerprint;
}

int64_t GraphCache::Call::bytes() const {
  return graph->bytes() + static_cast<int64_t>(key.size() * sizeof key[0] + addresses.size() * sizeof addresses[0]);
}

bool GraphCache::Seen::has(uint64_t fingerprint) const {
  return std::find(latest_.begin(), latest_.end(), fingerprint) != latest_.end();
}

bool GraphCache::Seen::add(uint64_t fingerprint) {
  if (has(fingerprint)) return false;
  if (latest_.size() < kMost)
    latest_.push_back(fingerprint);
  else
    latest_[next_++ % kMost] = fingerprint;
  return true;
}

CallGraph* GraphCache::find(const Key& key, const Addresses& addresses, const Record& record) {
  const auto found = std::find_if(calls_.begin(), calls_.end(),
                                  [&](const Call& call) { return call.addresses == addresses && call.key == key; });
  if (found != calls_.end()) {
    calls_.splice(calls_.begin(), calls_, found);
    return found->graph.get();
  }
  Fingerprint name = fingerprint_of(key);
  if (given_up_.has(name.value())) return nullptr;
  const bool is_first = seen_.add(name.value());
  for (const std::byte* address : addresses) name.add(reinterpret_cast<uintptr_t>(address));
  const bool is_new = seen_.add(name.value());
  return is_first ? nullptr : make_graph({key, addresses, nullptr, is_new}, record);
}

// A graph that cannot be recorded, or only in part, is not kept.
CallGraph* GraphCache::make_graph(Call call, const Record& record) {
  call.graph = call.moves ? take_moving_graph(call.key) : nullptr;
  try {
    if (!call.graph) call.graph = std::make_unique<CallGraph>();
    record(*call.graph);
  } catch (const std::runtime_error& error) {
    give_up(call.key, error.what());
    return nullptr;
  }
  calls_.push_front(std::move(call));
  drop_least_recent();
  return calls_.front().graph.get();
}

std::unique_ptr<CallGraph> GraphCache::take_moving_graph(const Key& key) {
  const auto moving =
      std::find_if(calls_.begin(), calls_.end(), [&](const Call& call) { return call.moves && call.key == key; });
  if (moving == calls_.end()) return nullptr;
  std::unique_ptr<CallGraph> graph = std::move(moving->graph);
  calls_.erase(moving);
  return graph;
}

void GraphCache::give_up(const CallGraph* graph, const std::string& reason) {
  const auto found =
      std::find_if(calls_.begin(), calls_.end(), [&](const Call& call) { return call.graph.get() == graph; });
  if (found != calls_.end()) give_up(Key(found->key), reason);
}

void GraphCache::give_up(const Key& key, const std::string& reason) {
  if (given_up_.empty())
    std::fprintf(stderr,
                 "fastreduce: warning: a call over several GPUs is not replayed as a CUDA graph, which is slower: %s\n",
                 reason.c_str());
  given_up_.add(fingerprint_of(key).value());
  calls_.remove_if([&](const Call& call) { return call.key == key; });
}

void GraphCache::drop_least_recent() {
  int64_t bytes = calls_.front().bytes();
  auto call = std::next(calls_.begin());
  while (call != calls_.end() && (bytes += call->bytes()) <= max_bytes_) ++call;
  calls_.erase(call, calls_.end());
}

}  // namespace fastreduce
