#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <string>
#include <vector>

#include "cuda/call_graph.h"
#include "fingerprint.h"

namespace fastreduce {

// False where the environment turns them off.
bool graphs_wanted();

// A training step repeats a few calls, or one for each parameter. A graph takes from a few kilobytes to megabytes, as
// it has nodes. Predicted; tests keep fewer.
inline int64_t most_graph_bytes = 256 << 20;

// The graphs of repeated calls. A call's `key` is all that decides which nodes its graph has; calls of one key differ
// in the addresses of their tensors. Graphs are made for calls that come again:
// - the first call of a key has none;
// - a call with addresses that are new to the key takes over the one graph of the key that moves, because gradients
//   may have other addresses at each step. Updating costs about a third of enqueuing (predicted);
// - a call with addresses that were seen before gets a graph that keeps them, for tensors that are used in turn.
class GraphCache {
 public:
  using Key = std::vector<uint64_t>;
  using Addresses = std::vector<std::byte*>;
  using Record = std::function<void(CallGraph&)>;

  explicit GraphCache(int64_t max_bytes = most_graph_bytes) : max_bytes_(max_bytes) {}

  // The graph that does this call, or nullptr if it has none. Where recording fails, a warning says so once, and calls
  // with this key have no graph any more.
  CallGraph* find(const Key& key, const Addresses& addresses, const Record& record);
  // No graph any more for calls with this one's key.
  void give_up(const CallGraph* graph, const std::string& reason);

 private:
  struct Call {
    Key key;
    Addresses addresses;
    std::unique_ptr<CallGraph> graph;
    bool moves;  // the graph
    int64_t bytes() const;
  };
  // Fingerprints of what came lately. Where two are the same by chance, a call gets a graph earlier or later, no more.
  class Seen {
   public:
    bool empty() const { return latest_.empty(); }
    bool has(uint64_t fingerprint) const;
    bool add(uint64_t fingerprint);  // false if it was there

   private:
    static constexpr size_t kMost = 4096;  // the calls of a few steps, searched within a microsecond (predicted)
    std::vector<uint64_t> latest_;
    size_t next_ = 0;
  };
  static Fingerprint fingerprint_of(const Key& key);
  CallGraph* make_graph(Call call, const Record& record);
  std::unique_ptr<CallGraph> take_moving_graph(const Key& key);
  void give_up(const Key& key, const std::string& reason);
  void drop_least_recent();

  int64_t max_bytes_;
  std::list<Call> calls_;  // that have a graph; most recently used first
  Seen seen_;              // keys, and keys with their addresses
  Seen given_up_;          // keys
};

}  // namespace fastreduce
