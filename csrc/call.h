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
  // Ranks of one GPU through the events engine, each on a stream of its own: to test and time that
  // engine where there is one GPU. Off, they take the tiles engine.
  void (*set_lane_per_rank)(bool on);
};
extern const CudaBackend* cuda_backend;

// The algorithm to ask for: "auto" depends on where the tensors are; others stay.
std::string resolve(const Call& call, const std::string& algorithm);

void execute(const Call& call, const Program& program);

// The program's written buffers that are outputs (those behind the inputs, if there are any).
std::vector<bool> written_outputs(const Call& call, const Program& program);

void bump_versions(const TensorLists& lists, const std::vector<bool>& written);

}  // namespace fastreduce
