// The CPU's engine: tiles, run on torch's threads.
#include <ATen/Parallel.h>

#include "cpu/tiles.h"
#include "engine.h"

namespace fastreduce {
namespace {

void on_torch_threads(int64_t tasks, const std::function<void(int64_t, int64_t)>& body) {
  at::parallel_for(0, tasks, 1, body);
}

class CpuEngine final : public Engine {
 public:
  const char* place(const Devices&) override { return "cpu"; }

  void run(const Devices&, const Schedule& schedule, const std::vector<Table>& tables, bool) override {
    for (const Table& table : tables) run_tiles(schedule, table, on_torch_threads);
  }
};

CpuEngine cpu_engine;
[[maybe_unused]] const bool cpu_registered = (register_engine(c10::kCPU, cpu_engine), true);

}  // namespace
}  // namespace fastreduce
