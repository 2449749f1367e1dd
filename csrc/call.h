// A checked call on its way to an engine.
#pragma once

#include <string>
#include <vector>

#include "check.h"
#include "instruction.h"

namespace fastreduce {

// Set by the CUDA build (cuda_call.cpp); null where only the CPU engine was built.
struct CudaBackend {
  void (*run)(const Call& call, const Program& program, const std::vector<Table>& tables);
  const char* (*choose)(const Call& call);  // the algorithm that "auto" stands for
  void (*keep_proofs_in)(const std::string& path);  // of peer access
};
extern const CudaBackend* cuda_backend;

// The algorithm to ask for: "auto" depends on where the tensors are; others stay.
std::string resolve(const Call& call, const std::string& algorithm);

void execute(const Call& call, const Program& program);

// The program's written buffers that are outputs (those behind the inputs, if there are any).
std::vector<bool> written_outputs(const Call& call, const Program& program);

void bump_versions(const TensorLists& lists, const std::vector<bool>& written);

}  // namespace fastreduce
