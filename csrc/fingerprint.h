// One number for what all ranks must do alike.
#pragma once

#include <cstdint>

namespace fastreduce {

// Of numbers in their order, with the last steps of splitmix64 (Vigna 2015) after each. c10::hash_combine adds small
// numbers with hardly a shift: it takes the sizes [1, 2] for [2, 65].
class Fingerprint {
 public:
  template <typename... Numbers>
  void add(Numbers... numbers) {
    ((value_ = mixed(value_ ^ static_cast<uint64_t>(numbers))), ...);
  }
  uint64_t value() const { return value_; }

 private:
  // Of different numbers, different ones.
  static constexpr uint64_t mixed(uint64_t number) {
    number += 0x9e3779b97f4a7c15;
    number = (number ^ (number >> 30)) * 0xbf58476d1ce4e5b9;
    number = (number ^ (number >> 27)) * 0x94d049bb133111eb;
    return number ^ (number >> 31);
  }

  uint64_t value_ = 0;
};

}  // namespace fastreduce
