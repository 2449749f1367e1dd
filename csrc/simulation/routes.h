// A machine or a cluster as arrays, and the best routes through its links.
#pragma once

#include <map>
#include <mutex>
#include <optional>

#include "simulation/program.h"

namespace fastreduce::simulation {

struct Link {
  int src;
  int dst;
  double bytes_per_s;  // NaN: unknown, narrower than any known one
  double latency_s;
};

struct Node {
  bool ends_routes;           // a GPU: no route leads through it
  double memory_bytes_per_s;  // NaN: unknown, or it has none
};

// Routes are found when they are asked for, and kept. Several threads may ask.
class Machine {
 public:
  Machine(std::vector<Node> nodes, std::vector<Link> links);

  // The links from one node to another, in order: the direct link, or else the widest route, among those the shortest,
  // then the fastest. Empty from a node to itself; nothing if no links lead there. Of equals the one found first wins,
  // so that the answer depends only on the links' order.
  //
  // There are two searches. The first finds how wide a route can be, the second the shortest of that width. With one
  // search a wide detour on the way to a node behind a narrow link would win over the direct way there.
  std::optional<std::vector<int>> route(int src, int dst);

  const std::vector<Node> nodes;
  const std::vector<Link> links;

 private:
  struct Tree {
    int grade;                // of the narrowest link that it may use
    std::vector<int> parent;  // by node, the link that leads to it
  };

  std::optional<std::vector<int>> find(int src, int dst);
  void look_from(int src);
  const Tree& tree_of(int grade);

  std::vector<std::vector<int>> leaving_;  // links, by node
  std::vector<int> grade_;                 // by link: 0 is the widest, then each narrower width
  int grades_;
  std::mutex mutex_;  // for all below
  std::map<std::pair<int, int>, std::optional<std::vector<int>>> routes_;
  int src_ = -1;             // of the last search, to which the two below belong
  std::vector<int> widest_;  // by node, the grade of the widest route
  std::vector<Tree> trees_;
};

}  // namespace fastreduce::simulation
