#include "simulation/simulation.h"

#include <cmath>

namespace fastreduce::simulation {

Simulation::Simulation(KnownProgram& program, Machine& machine, std::span<const int> node_of, int host, bool by_kernels,
                       const Pause& pause)
    : tasks(tasks_of(program.flat, program.waits(), program.launches(), node_of, host, by_kernels)),
      paths(paths_of(machine, tasks.pairs, pause)),
      links_(machine.links.size()) {}

std::optional<int> Simulation::unknown() const {
  for (size_t link = 0; link < paths.bytes_per_s.size(); ++link)
    if (std::isnan(paths.bytes_per_s[link])) return paths.place_of[link];
  return std::nullopt;
}

double Simulation::seconds(std::span<const double> shard_bytes, int slices, const Costs& costs, bool distances,
                           const Pause& pause) const {
  if (distances) return play(tasks, paths, shard_bytes, slices, costs, pause);
  return play(tasks, without_distances(paths), shard_bytes, slices, costs, pause);
}

Spans Simulation::spans(std::span<const double> shard_bytes, int slices, const Costs& costs, const Pause& pause) const {
  Spans found;
  play(tasks, paths, shard_bytes, slices, costs, pause, &found);
  return found;
}

std::vector<double> Simulation::link_bytes(std::span<const double> shard_bytes, int slices) const {
  std::vector<double> total(links_);
  for (const Transfer& transfer : tasks.transfers)
    for (int link : paths.links[transfer.pair])
      if (!paths.is_memory(link)) total[paths.place_of[link]] += shard_bytes[transfer.shard] * slices;
  return total;
}

int64_t Simulation::events() const {
  int64_t count = 0;
  for (const Task& task : tasks.tasks) count += task.phases();
  for (const Transfer& transfer : tasks.transfers) {
    const auto links = paths.links[transfer.pair];
    if (!paths.is_memory(links.front())) count += static_cast<int64_t>(links.size());
  }
  return count;
}

}  // namespace fastreduce::simulation
