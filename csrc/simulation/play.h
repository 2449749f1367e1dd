// Plays tasks on a machine's links, event by event.
#pragma once

#include "simulation/paths.h"
#include "simulation/tasks.h"

namespace fastreduce::simulation {

// As fastreduce.simulation.Costs.
struct Costs {
  double call_s;
  double launch_s;
  double event_wait_s;
  double ramp_bytes;
};

// When each stage and each transfer starts and ends, in the order of `Stages`.
struct Spans {
  std::vector<double> stage_start_s, stage_end_s;
  std::vector<double> transfer_start_s, transfer_end_s;
};

// Returns when the last transfer ends; 0 if there is none. A shard has `shard_bytes` in each of `slices` slices. Writes
// `spans` unless it is null.
double play(const Tasks& tasks, const Paths& paths, std::span<const double> shard_bytes, int slices, const Costs& costs,
            const Pause& pause, Spans* spans = nullptr);

}  // namespace fastreduce::simulation
