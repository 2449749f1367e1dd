// What a new engine implements, and where the calls find it.
#pragma once

#include <c10/core/Device.h>

#include <atomic>
#include <functional>
#include <string>
#include <vector>

#include "rows.h"
#include "schedule.h"

namespace fastreduce {

using Devices = std::vector<c10::Device>;  // by rank

// Runs schedules over the memory of one type of device.
class Engine {
 public:
  // Where the ranks are, as far as the choice of a program depends on it (fastreduce/plan/defaults.py).
  virtual const char* place(const Devices& devices) = 0;

  // Leaves the results in the tables' rows: after what is enqueued on the devices' current streams,
  // and before what is enqueued there next.
  virtual void run(const Devices& devices, const Schedule& schedule, const std::vector<Table>& tables) = 0;

  // Whether a tensor that is not contiguous may be replaced by a copy, which lives until run returns.
  virtual bool may_copy(const Devices&) { return true; }

 protected:
  ~Engine() = default;
};

// Done once for each type, while the extension is loaded.
void register_engine(c10::DeviceType type, Engine& engine);

// nullptr where this build has none.
Engine* find_engine(c10::DeviceType type);

// Where an engine may keep what it found out about this machine. Set before the first call.
extern std::function<std::string()> cache_folder;

// Whether every rank counts as a device of its own: tests and benchmarks use it to run the engine for
// several GPUs on one.
extern std::atomic<bool> lane_per_rank;

}  // namespace fastreduce
