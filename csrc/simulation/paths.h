// The links between the pairs of nodes that a program uses.
#pragma once

#include "simulation/routes.h"

namespace fastreduce::simulation {

// By pair, the links by index into `bytes_per_s`. The link from a node to itself is its memory.
struct Paths {
  Lists links;
  std::vector<double> latency_s;                 // by pair
  std::vector<double> bytes_per_s;               // by link, as the one below; NaN: unknown
  std::vector<int> place_of;                     // the machine's link, or ~node for its memory
  std::optional<std::pair<int, int>> unreached;  // the first pair without a route; then the others are missing too

  bool is_memory(int link) const { return place_of[link] < 0; }
};

Paths paths_of(Machine& machine, std::span<const std::pair<int, int>> pairs, const Pause& pause);

// The same if links between nodes cost nothing, so that only launches and memories do.
Paths without_distances(Paths paths);

}  // namespace fastreduce::simulation
