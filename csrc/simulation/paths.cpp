#include "simulation/paths.h"

#include <algorithm>
#include <unordered_map>

namespace fastreduce::simulation {

Paths paths_of(Machine& machine, std::span<const std::pair<int, int>> pairs, const Pause& pause) {
  Paths paths;
  paths.links.reserve(pairs.size());
  std::unordered_map<int, int> number_of;  // of a place
  const auto number = [&](int place) {
    const auto [found, is_new] = number_of.try_emplace(place, static_cast<int>(paths.place_of.size()));
    if (is_new) {
      paths.place_of.push_back(place);
      paths.bytes_per_s.push_back(place < 0 ? machine.nodes[~place].memory_bytes_per_s
                                            : machine.links[place].bytes_per_s);
    }
    return found->second;
  };
  Pacer pacer(pause);
  std::vector<int> links;
  for (const auto& [src, dst] : pairs) {
    pacer.count(static_cast<int64_t>(machine.links.size()));
    const auto route = machine.route(src, dst);
    if (!route) {
      paths.unreached = {src, dst};
      return paths;
    }
    links.clear();
    double latency_s = 0;
    for (int link : *route) {
      links.push_back(number(link));
      latency_s += machine.links[link].latency_s;
    }
    if (src == dst) links.push_back(number(~src));
    paths.links.add(links);
    paths.latency_s.push_back(latency_s);
  }
  return paths;
}

Paths without_distances(Paths paths) {
  constexpr double kFreeBytesPerS = 1e30;
  std::fill(paths.latency_s.begin(), paths.latency_s.end(), 0.0);
  for (size_t link = 0; link < paths.bytes_per_s.size(); ++link)
    if (!paths.is_memory(static_cast<int>(link))) paths.bytes_per_s[link] = kFreeBytesPerS;
  return paths;
}

}  // namespace fastreduce::simulation
