// All live memory before a kernel, to find what it writes and did not declare.
#pragma once

#include <cstdint>
#include <vector>

#include "checker.h"
#include "queue.h"

namespace virtual_cuda {

class Snapshot {
 public:
  Snapshot() = default;
  explicit Snapshot(Memory& memory);
  void compare(const Work& work, Memory& memory, Checker& checker);

 private:
  void take_over(const Access& access);

  struct Piece {
    uintptr_t begin;
    std::vector<unsigned char> bytes;
  };
  std::vector<Piece> pieces_;
};

}  // namespace virtual_cuda
