// The cache of schedules. Python chooses, verifies and builds them (fastreduce/plan/build.py), once per question.
#pragma once

#include <compare>
#include <functional>
#include <memory>
#include <string>

#include "call.h"

namespace fastreduce {

// Everything that the choice of a program depends on.
struct Question {
  Collective collective;
  std::string algorithm;
  int64_t ranks;
  int64_t root;
  // Only where the algorithm is still to be chosen; but processes always have their place.
  std::string place = {};
  int64_t nbytes = 0;         // the size class
  std::string variable = {};  // the value of FASTREDUCE_ALGORITHM, which fastreduce/plan/choose.py reads
  auto operator<=>(const Question&) const = default;
};

// The other collectives have one program for all sizes.
bool is_to_be_chosen(Collective collective, const std::string& algorithm);

Question question_of(const Call& call);

// Of ranks that are processes, each with `nbytes`.
Question question_of(Collective collective, int64_t ranks, int64_t root, int64_t nbytes, const std::string& variable);

// The size rounded up to a power of two. "auto" makes the same choice for all sizes of one class.
int64_t size_class(int64_t nbytes);

// Built when first needed, by `build_schedule`, which calls Python and is set while the extension is loaded.
std::shared_ptr<const Schedule> schedule_of(const Question& question);
extern std::function<std::shared_ptr<const Schedule>(const Question&)> build_schedule;

// The value of FASTREDUCE_ALGORITHM now; empty if there is none. Set as `build_schedule` is: this takes the GIL,
// without which another thread may change os.environ meanwhile, and getenv would read what setenv has freed.
extern std::function<std::string()> algorithm_of_environment;

// Forgets the schedules if a program's file has changed since they were built. Called for each call by "file:PATH", and
// set as `build_schedule` is.
extern std::function<void(const std::string&)> look_at_file;

// Called when an algorithm was replaced or the machine was tuned; later calls build schedules again.
void forget_schedules();

}  // namespace fastreduce
