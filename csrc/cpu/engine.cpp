// The CPU's engine: tiles, run on torch's threads.
#include <ATen/Parallel.h>

#include "cpu/tiles.h"
#include "engine.h"
#include "float_modes.h"

namespace fastreduce {
namespace {

void on_torch_threads(int64_t tasks, const std::function<void(int64_t, int64_t)>& body) {
  // In this thread, which has its modes: to set them anew would take 0.1 us, and a small call takes 1.4 (2 virtual
  // cores of an AMD EPYC, family 26 model 2, 2026-11-30).
  if (tasks == 1) return body(0, 1);
  // Or the bits of a tile would depend on which thread it comes to.
  const FloatModes of_caller;
  at::parallel_for(0, tasks, 1, [&](int64_t begin, int64_t end) {
    const WithFloatModes as_of_caller(of_caller);
    body(begin, end);
  });
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
