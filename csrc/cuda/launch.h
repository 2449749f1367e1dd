// One kernel launch: rows of a table, each taken through its list of instructions.
#pragma once

#include <cuda_runtime.h>

#include "cuda/line.h"
#include "rows.h"
#include "schedule.h"

namespace fastreduce {

// How the 32,764 bytes below are divided: for each row 10 pointers and one instruction of 6 operands. Chosen, not
// measured; what does not fit takes another launch.
constexpr int kMaxRows = 256;
constexpr int kMaxPointers = 2560;
constexpr int kMaxInstructions = 256;
constexpr int kMaxOperands = 1536;

struct RowArg {
  int64_t elems;
  int32_t first_tile;
  uint16_t first_pointer;
  uint16_t first_instruction;
  uint16_t end_instruction;
  bool vectors;        // of 16 bytes behind the head; else element by element
  uint8_t head_elems;  // before the first address that is a multiple of 16
};

struct InstructionArg {
  uint16_t first_operand;  // the sources, then the destinations
  uint16_t num_srcs;
  uint16_t num_dsts;
  uint16_t divisor;  // of an average where its sum is complete: the number of ranks; else 1
};

// Everything that a kernel gets from the host. Parameters of a kernel may have 32,764 bytes (CUDA 12.1 and later,
// compute 7.0 and later). A table passed in them needs no copy and no allocation.
struct LaunchArgs {
  int32_t num_rows = 0;
  int32_t num_tiles = 0;
  int32_t tile_elems = 0;
  int32_t elem_bytes = 0;
  RowArg rows[kMaxRows];
  std::byte* pointers[kMaxPointers];
  InstructionArg instructions[kMaxInstructions];
  uint16_t operands[kMaxOperands];  // buffers, relative to the row's first pointer
};
static_assert(sizeof(LaunchArgs) <= 32764);

// With three blocks of 256 threads per multiprocessor each thread has 80 registers. With fewer, the compiler starts
// some loads only after earlier ones were added (seen in the machine code by nvcc 13.2 for compute 9.0, 2026-11-21:
// tests/csrc/cuda/test_machine_code.py).
constexpr int kThreads = 256;
constexpr int kBlocksPerProcessor = 3;

// The bytes of each buffer that a block takes at a time: at least one vector of 16 bytes per thread, at most the 4
// vectors that a thread loads at a time when it copies.
constexpr int64_t kMinTileBytes = 16 * kThreads;
constexpr int64_t kMaxTileBytes = 4 * kMinTileBytes;

using Kernel = void (*)(LaunchArgs);
Kernel cuda_kernel(DType dtype, Op op);

// Collects rows, and launches them when a launch is full or `flush` is called.
class Launcher {
 public:
  Launcher(DType dtype, Op op, int64_t elem_bytes, Line& line);

  // A row's instructions: those of one shard, in program order. `pointers` holds one address for
  // each buffer; the row covers `elems` elements from there.
  void add(const std::vector<const Instruction*>& instructions, int ranks, std::byte* const* pointers, int num_pointers,
           int64_t elems);
  void flush();

 private:
  bool fits(const std::vector<const Instruction*>& instructions, int num_pointers) const;
  void add_instructions(const std::vector<const Instruction*>& instructions, int ranks);
  void cut_into_tiles(int blocks);

  DType dtype_;
  Op op_;
  int64_t elem_bytes_;
  Line& line_;
  LaunchArgs args_;
  const std::vector<const Instruction*>* last_instructions_ = nullptr;
  int num_pointers_ = 0;
  int num_instructions_ = 0;
  int num_operands_ = 0;
};

}  // namespace fastreduce
