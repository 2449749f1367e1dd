// FASTREDUCE_CHAOS: this rank is slow, stops, fails or is killed at random calls, so that one sees what a program does.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <random>
#include <string>

#include "processes/group.h"

namespace fastreduce {

class Chaos {
 public:
  // Probabilities of a call, in the order of the names in chaos.cpp.
  using Shares = std::array<double, 4>;

  // As the environment says; none if it says nothing. Throws ValueError if it cannot be read.
  static std::unique_ptr<Chaos> of_environment();

  // What is to be done in place of this call. Calls are drawn in the order in which this is called.
  std::function<void()> around(std::function<void()> call, Group& group, std::chrono::milliseconds timeout) const;

 private:
  Chaos(uint64_t seed, const Shares& shares) : seed_(seed), shares_(shares) {}
  std::mt19937_64 random(const std::string& rank, uint64_t call) const;

  const uint64_t seed_;
  const Shares shares_;
};

}  // namespace fastreduce
