// FASTREDUCE_CHAOS makes this rank slow, or makes it stop, fail or be killed, at random calls: so users see how their
// program takes it.
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
  // The probability of each event at a call, in the order of the names in chaos.cpp.
  using Shares = std::array<double, 4>;

  // What the environment asks for; nullptr if it asks for nothing. Throws ValueError if it cannot be read.
  static std::unique_ptr<Chaos> of_environment();

  // The function to run in place of this call. Events are drawn in the order in which calls come here.
  std::function<void()> around(std::function<void()> call, Group& group, std::chrono::milliseconds timeout) const;

 private:
  Chaos(uint64_t seed, const Shares& shares) : seed_(seed), shares_(shares) {}
  std::mt19937_64 random(const std::string& rank, uint64_t call) const;

  const uint64_t seed_;
  const Shares shares_;
};

}  // namespace fastreduce
