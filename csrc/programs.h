// Schedules: chosen, verified and built in Python (fastreduce/plan/build.py), once for each question.
#pragma once

#include <compare>
#include <functional>
#include <memory>
#include <string>

#include "call.h"

namespace fastreduce {

// All that the choice of a program depends on.
struct Question {
  Collective collective;
  std::string algorithm;
  int64_t ranks;
  int64_t root;
  std::string place;  // this and the size: only where the algorithm is still to be chosen
  int64_t nbytes;
  auto operator<=>(const Question&) const = default;
};

Question question_of(const Call& call);

// Sizes for which "auto" chooses alike: up to the next power of two.
int64_t size_class(int64_t nbytes);

// Built when first asked for. The builder is Python's, set while the extension is loaded.
std::shared_ptr<const Schedule> schedule_of(const Question& question);
extern std::function<std::shared_ptr<const Schedule>(const Question&)> build_schedule;

// Until the next call: an algorithm was registered anew, or the machine was tuned.
void forget_schedules();

}  // namespace fastreduce
