#include "call.h"

#include <ATen/Parallel.h>
#include <c10/core/GradMode.h>

#include <bit>

#include "tables.h"
#include "cpu/tiles.h"

namespace fastreduce {
namespace {

void on_torch_threads(int64_t tasks, const std::function<void(int64_t, int64_t)>& body) {
  at::parallel_for(0, tasks, 1, body);
}

}  // namespace

const CudaBackend* cuda_backend = nullptr;

const char* place(const Call& call) { return call.on_cuda() ? cuda_backend->place(call) : "cpu"; }

int64_t size_class(const Call& call) {
  uint64_t bytes = 0;
  for (int64_t i = 0; i < call.outputs.per_rank; ++i) bytes += call.outputs.at(0, i).nbytes();
  return static_cast<int64_t>(std::bit_ceil(bytes));
}

void execute(const Call& call, const Schedule& program) {
  const c10::AutoGradMode no_grad(false);
  const Tables tables(call, program);
  if (call.on_cuda())
    cuda_backend->run(call, program, tables.all());
  else
    for (const Table& table : tables.all()) run_tiles(program, table, on_torch_threads);
  tables.write_back();
}

std::vector<bool> written_outputs(const Call& call, const Schedule& program) {
  return {program.written.begin() + call.inputs.ranks, program.written.end()};
}

void bump_versions(const TensorLists& lists, const std::vector<bool>& written) {
  for (int64_t rank = 0; rank < lists.ranks; ++rank)
    if (written[rank])
      for (int64_t i = 0; i < lists.per_rank; ++i) lists.at(rank, i).unsafeGetTensorImpl()->bump_version();
}

}  // namespace fastreduce
