#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <string>
#include <vector>

#include "cuda/call_graph.h"

namespace fastreduce {

// False where the environment turns them off.
bool graphs_wanted();

// The graphs of repeated calls. A call's `key` is all that decides which nodes its graph has; calls of one key differ
// in the addresses of their tensors. Graphs are made for calls that come again:
// - the first call of a key has none;
// - a call with addresses that are new to the key takes over the one graph of the key that moves, because gradients
//   may have other addresses at each step. Updating costs about a third of enqueuing (predicted);
// - a call with addresses that were seen before gets a graph that keeps them, for tensors that are used in turn.
class GraphCache {
 public:
  // A training step repeats a few calls. A graph takes from a few kilobytes to megabytes, as it has nodes (predicted).
  static constexpr size_t kMaxGraphs = 64;
  static constexpr int64_t kMaxGraphBytes = 256 << 20;
  explicit GraphCache(int64_t max_bytes = kMaxGraphBytes) : max_bytes_(max_bytes) {}

  using Record = std::function<void(CallGraph&)>;
  // The graph that does this call, or nullptr if it has none. Where recording fails, a warning says so once, and calls
  // with this key have no graph any more.
  CallGraph* find(std::vector<uint64_t> key, std::vector<std::byte*> addresses, const Record& record);
  // No graph any more for the calls with the key found last.
  void give_up(const std::string& reason);

 private:
  struct SeenCall {
    std::vector<uint64_t> key;
    std::vector<std::byte*> addresses;
    std::unique_ptr<CallGraph> graph;
    bool moves = false;     // its graph
    bool given_up = false;  // all calls of this key
    int64_t bytes() const;
  };
  SeenCall& latest() { return calls_.front(); }
  void make_graph(bool moves, const Record& record);
  std::unique_ptr<CallGraph> take_moving_graph();
  void drop_least_recent();

  int64_t max_bytes_;
  std::list<SeenCall> calls_;  // most recently used first
  bool warned_ = false;
};

}  // namespace fastreduce
