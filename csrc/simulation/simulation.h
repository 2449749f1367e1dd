// A program on a machine: what may be played with several sizes, slices and costs.
#pragma once

#include "simulation/known_program.h"
#include "simulation/play.h"

namespace fastreduce::simulation {

class Simulation {
 public:
  // `node_of[buffer]` holds a buffer, and `node_of[rank]` executes; `host` is the node of kHost.
  Simulation(KnownProgram& program, Machine& machine, std::span<const int> node_of, int host, bool by_kernels,
             const Pause& pause);

  // The first link with an unknown bandwidth: the machine's number of it, or ~node for its memory.
  std::optional<int> unknown() const;

  // The time, also if links cost nothing (`distances` is false).
  double seconds(std::span<const double> shard_bytes, int slices, const Costs& costs, bool distances,
                 const Pause& pause) const;

  Spans spans(std::span<const double> shard_bytes, int slices, const Costs& costs, const Pause& pause) const;

  // How many bytes cross each link of the machine.
  std::vector<double> link_bytes(std::span<const double> shard_bytes, int slices) const;

  // How many stages, and uses of links by transfers, there are in one slice.
  int64_t events() const;

  const Tasks tasks;
  const Paths paths;

 private:
  size_t links_;  // of the machine
};

}  // namespace fastreduce::simulation
