// One kernel launch: rows of a table, each taken through its list of instructions.
#pragma once

#include <c10/macros/Macros.h>
#include <cuda_runtime.h>

#include "cuda/line.h"
#include "rows.h"
#include "schedule.h"

namespace fastreduce {

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
  uint16_t divisor;   // of an average where its sum is complete: the number of ranks; else 1
  uint16_t in_place;  // 1 if the destinations are the sources, else 0
};

// Parameters of a kernel may have 32,764 bytes (CUDA 12.1 and later, compute 7.0 and later). Before CUDA 13, a captured
// launch of more than 4 KB crashes or is refused (openxla/xla#19252).
constexpr size_t kMaxArgsBytes = CUDART_VERSION >= 13000 ? 32760 : 4088;

// Everything that a kernel gets from the host: in its parameters, a table needs no copy and no allocation. Only the
// bytes that are used are passed. Passing all 32 KB took the host 7.1 us instead of 3.8; and spread over 32 KB instead
// of packed, the table is read through several misses of the constant cache, one after the other (H100, 2026-11-22).
struct LaunchArgs {
  int32_t num_rows;
  int32_t tile_elems;
  int32_t elem_bytes;
  uint16_t instructions_at, operands_at, pointers_at;  // in bytes of the table, which begins with the rows
  alignas(8) std::byte table[kMaxArgsBytes - 24];

  template <class Entry>
  C10_HOST_DEVICE const Entry* entries(int at = 0) const {
    return reinterpret_cast<const Entry*>(table + at);
  }
  C10_HOST_DEVICE const RowArg& row(int i) const { return entries<RowArg>()[i]; }
  C10_HOST_DEVICE const InstructionArg& instruction(int i) const { return entries<InstructionArg>(instructions_at)[i]; }
  // A buffer, relative to the row's first pointer.
  C10_HOST_DEVICE int operand(int i) const { return entries<uint16_t>(operands_at)[i]; }
  C10_HOST_DEVICE std::byte* pointer(int i) const { return entries<std::byte*>(pointers_at)[i]; }
};
static_assert(sizeof(LaunchArgs) == kMaxArgsBytes);

// With three blocks of 256 threads per multiprocessor each thread has 80 registers. With fewer, the compiler starts
// some loads only after earlier ones were added (seen in the machine code by nvcc 13.2 for compute 9.0, 2026-11-21:
// tests/csrc/cuda/test_machine_code.py).
constexpr int kThreads = 256;
constexpr int kBlocksPerProcessor = 3;
constexpr int64_t kVectorBytes = 16;

// How many vectors of each source a thread loads at a time: all loads of a tile are under way before the first is
// waited for, and there is a block for every tile, so that the device's own scheduler keeps all its processors busy. On
// an H100 (2026-11-22) 256 MiB from 2, 4 and 8 ranks took 0.95 of the time of longer tiles and as many blocks as fit.
constexpr int vectors_at_a_time(int num_srcs) { return num_srcs <= 2 ? 2 : 1; }

// A small call is cut finer, since a processor moves no more than 64 bytes a cycle: into at least one tile for each of
// about 128 processors, but not below two warps of vectors (8 to 32 KiB from 8 ranks: 0.82 of the time; H100,
// 2026-11-23).
constexpr int kEnoughTiles = 128;
constexpr int64_t kMinTileBytes = 1024;

using Kernel = void (*)(LaunchArgs);
Kernel cuda_kernel(DType dtype, Op op);

// Throws if a row with these instructions does not fit a launch of its own. An engine asks before it launches anything.
void expect_fits(const std::vector<const Instruction*>& instructions, int num_pointers);

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
  int cut_into_tiles();
  size_t pack(LaunchArgs& args) const;

  DType dtype_;
  Op op_;
  int64_t elem_bytes_;
  Line& line_;
  std::vector<RowArg> rows_;
  std::vector<InstructionArg> instructions_;
  std::vector<uint16_t> operands_;
  std::vector<std::byte*> pointers_;
  int32_t tile_elems_ = 0;
  const std::vector<const Instruction*>* last_instructions_ = nullptr;
};

}  // namespace fastreduce
