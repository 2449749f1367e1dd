#include "cuda/graph_cache.h"

#include <algorithm>
#include <cstdio>

#include "cuda/environment.h"

namespace fastreduce {

bool graphs_wanted() {
  static const bool wanted = !is_set_to("FASTREDUCE_GRAPHS", "0");
  return wanted;
}

int64_t GraphCache::SeenCall::bytes() const {
  return static_cast<int64_t>(key.size() * sizeof key[0] + addresses.size() * sizeof addresses[0]) +
         (graph ? graph->bytes() : 0);
}

CallGraph* GraphCache::find(std::vector<uint64_t> key, std::vector<std::byte*> addresses, const Record& record) {
  const auto same = std::find_if(calls_.begin(), calls_.end(), [&](const SeenCall& call) {
    return (call.addresses == addresses || call.given_up) && call.key == key;
  });
  const bool is_new = same == calls_.end();
  const bool is_first =
      is_new && std::none_of(calls_.begin(), calls_.end(), [&](const SeenCall& call) { return call.key == key; });
  if (is_new)
    calls_.push_front({std::move(key), std::move(addresses), nullptr});
  else
    calls_.splice(calls_.begin(), calls_, same);
  if (latest().graph || latest().given_up) return latest().graph.get();
  if (!is_first) make_graph(is_new, record);
  drop_least_recent();
  return latest().graph.get();
}

// A graph that cannot be recorded, or only in part, is not kept.
void GraphCache::make_graph(bool moves, const Record& record) {
  std::unique_ptr<CallGraph> graph = moves ? take_moving_graph() : nullptr;
  try {
    if (!graph) graph = std::make_unique<CallGraph>();
    record(*graph);
    latest().graph = std::move(graph);
    latest().moves = moves;
  } catch (const std::runtime_error& error) {
    give_up(error.what());
  }
}

std::unique_ptr<CallGraph> GraphCache::take_moving_graph() {
  const auto moving = std::find_if(calls_.begin(), calls_.end(),
                                   [&](const SeenCall& call) { return call.moves && call.key == latest().key; });
  if (moving == calls_.end()) return nullptr;
  moving->moves = false;
  return std::move(moving->graph);
}

void GraphCache::give_up(const std::string& reason) {
  if (!warned_)
    std::fprintf(stderr,
                 "fastreduce: warning: a call over several GPUs is not replayed as a CUDA graph, which is slower: %s\n",
                 reason.c_str());
  warned_ = true;
  std::vector<uint64_t> key = latest().key;
  calls_.remove_if([&](const SeenCall& call) { return call.key == key; });
  calls_.push_front({std::move(key), {}, nullptr, false, true});
}

void GraphCache::drop_least_recent() {
  size_t graphs = 0;
  int64_t bytes = 0;
  for (auto call = calls_.begin(); call != calls_.end();) {
    bytes += call->bytes();
    const bool keep = ++graphs == 1 || (graphs <= kMaxGraphs && bytes <= max_bytes_);
    call = keep ? std::next(call) : calls_.erase(call);
  }
}

}  // namespace fastreduce
