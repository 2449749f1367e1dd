#pragma once

#include <memory>
#include <mutex>

#include "simulation/program.h"

namespace fastreduce::simulation {

// A program, with what follows from it, which is found when it is first asked for. Where there is Python, call its
// methods without the GIL: a thread that waits for another one here would keep it from ending.
class KnownProgram {
 public:
  explicit KnownProgram(FlatProgram program) : flat(std::move(program)) {}

  const Lists& waits() {
    find();
    return waits_;
  }
  const std::vector<int>& launches() {
    find();
    return launches_;
  }
  double idle_shards() {
    find();
    std::call_once(idle_once_, [this] { idle_shards_ = simulation::idle_shards(flat, waits_, launches_); });
    return idle_shards_;
  }

  const FlatProgram flat;

 private:
  void find() {
    std::call_once(once_, [this] {
      waits_ = dependencies(flat);
      launches_ = simulation::launches(flat, waits_);
    });
  }

  std::once_flag once_, idle_once_;
  Lists waits_;
  std::vector<int> launches_;
  double idle_shards_ = 0;
};

using ProgramPointer = std::shared_ptr<KnownProgram>;

}  // namespace fastreduce::simulation
