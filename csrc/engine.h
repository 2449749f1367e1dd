// The interface of engines, and how calls find the engine of a device.
#pragma once

#include <c10/core/Device.h>
#include <c10/util/SmallVector.h>

#include <atomic>
#include <functional>
#include <string>
#include <vector>

#include "rows.h"
#include "schedule.h"

namespace fastreduce {

using Devices = c10::SmallVector<c10::Device, 16>;  // by rank

// Runs schedules over the memory of one type of device.
class Engine {
 public:
  // Where the ranks are, as far as the choice of a program depends on it (fastreduce/plan/defaults.py).
  virtual const char* place(const Devices& devices) = 0;

  // Leaves the results in the tables' rows. The work comes after everything that is enqueued on the devices' current
  // streams, and before everything that is enqueued there next. `by_flags` only where `has_flags` says so.
  virtual void run(const Devices& devices, const Schedule& schedule, const std::vector<Table>& tables,
                   bool by_flags) = 0;

  // Whether these ranks may be ordered by flags.
  virtual bool has_flags(const Devices&) { return false; }

  // Whether a tensor that is not contiguous may be replaced by a copy, which lives until run returns.
  virtual bool may_copy(const Devices&) { return true; }

  // Whether each tensor must lie at a multiple of its element size.
  virtual bool needs_alignment() { return false; }

 protected:
  ~Engine() = default;
};

// Called once per type of device, while the extension is loaded.
void register_engine(c10::DeviceType type, Engine& engine);

// nullptr if this build has none.
Engine* find_engine(c10::DeviceType type);

// The folder in which an engine may keep what it found out about this machine; "" if there is none. Set before the
// first call.
extern std::function<std::string()> cache_folder;

// Whether each rank gets a lane of its own, as if it had its own device. Tests and benchmarks use this to run the
// engine for several GPUs on one GPU.
extern std::atomic<bool> lane_per_rank;

}  // namespace fastreduce
