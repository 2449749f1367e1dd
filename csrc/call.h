// A checked call on its way to an engine.
#pragma once

#include <string>
#include <vector>

#include "check.h"
#include "schedule.h"

namespace fastreduce {

// Set by the CUDA build (cuda_call.cpp); null where only the CPU engine was built.
struct CudaBackend {
  void (*run)(const Call& call, const Schedule& program, const std::vector<Table>& tables);
  const char* (*place)(const Call& call);
  bool (*may_copy)(const Call& call);  // contiguous copies of tensors would live as long as their uses
  void (*keep_proofs_in)(const std::string& path);  // of peer access
  void (*set_lane_per_rank)(bool on);
};
extern const CudaBackend* cuda_backend;

// Where the ranks are, as far as the choice of a program depends on it: "cpu", one "gpu", several with
// "nvlink" between all pairs, or others ("pcie").
const char* place(const Call& call);

// Bytes of one rank's tensors, up to the next power of two.
int64_t size_class(const Call& call);

void execute(const Call& call, const Schedule& program);

// The program's written buffers that are outputs (those behind the inputs, if there are any).
std::vector<bool> written_outputs(const Call& call, const Schedule& program);

void bump_versions(const TensorLists& lists, const std::vector<bool>& written);

}  // namespace fastreduce
