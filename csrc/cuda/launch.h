// One kernel launch: rows of a table, each taken through its list of instructions.
#pragma once

#include <c10/macros/Macros.h>
#include <cuda_runtime.h>

#include <functional>

#include "cuda/line.h"
#include "rows.h"
#include "schedule.h"

namespace fastreduce {

struct RowArg {
  int64_t elems;
  int32_t first_tile;
  uint16_t first_pointer;  // of its instructions' operands
  uint16_t first_instruction;
  uint16_t end_instruction;
  bool vectors;        // of 16 bytes behind the head; else element by element
  uint8_t head_elems;  // before the first address that is a multiple of 16
};

struct alignas(8) InstructionArg {
  uint16_t first_operand;  // of its sources, then its destinations, counted from the row's first pointer
  uint16_t num_srcs;
  uint16_t num_dsts;   // 0: the destinations are the sources
  uint16_t parameter;  // as reduce_vector's
};

// What an instruction needs in a launch whose lanes wait for each other (cuda/signals.cuh).
struct StepArg {
  uint16_t lane;
  uint16_t first_wait;
  uint16_t num_waits;
  uint16_t awaited;  // 1 if another lane waits for it, else 0
};

// Until `lane` has done the row's instruction `number`.
struct WaitArg {
  uint16_t lane;
  uint16_t number;
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
  uint16_t elem_bytes;
  uint16_t instructions_at, pointers_at;  // in bytes of the table, which begins with the rows
  // Of launches whose lanes wait for each other. The signals of each lane are pointers from `first_signals` on; behind
  // them is their WaitEnd.
  uint16_t steps_at, waits_at, first_signals;
  uint8_t num_lanes;  // 0: no lane waits
  uint8_t lane;       // that of this launch
  alignas(8) std::byte table[kMaxArgsBytes - 24];

  template <class Entry>
  C10_HOST_DEVICE const Entry* entries(int at = 0) const {
    return reinterpret_cast<const Entry*>(table + at);
  }
  C10_HOST_DEVICE const RowArg& row(int i) const { return entries<RowArg>()[i]; }
  C10_HOST_DEVICE const InstructionArg& instruction(int i) const { return entries<InstructionArg>(instructions_at)[i]; }
  // The first instruction of a launch of one row, which lies right behind it: known without `instructions_at`.
  C10_HOST_DEVICE const InstructionArg& behind_one_row() const { return *entries<InstructionArg>(sizeof(RowArg)); }
  C10_HOST_DEVICE const StepArg& step(int i) const { return entries<StepArg>(steps_at)[i]; }
  C10_HOST_DEVICE const WaitArg& wait(int i) const { return entries<WaitArg>(waits_at)[i]; }
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

// A small call is cut finer, since a processor moves no more than 64 bytes per cycle: into at least one tile for each
// of about 128 processors, but not below two warps of vectors (8 to 32 KiB from 8 ranks: 0.82 of the time; H100,
// 2026-11-23).
constexpr int kEnoughTiles = 128;
constexpr int64_t kMinTileBytes = 1024;

// A launch whose lanes wait for each other has at most so many tiles (signals.cuh): 1 or 2 MiB per rank, where tiles
// are 4 or 8 KiB. Predicted: beyond that, what waiting costs is little beside the data.
constexpr int kMaxSignalTiles = 256;

// What ends waits: in memory of the host, which may change it meanwhile.
struct WaitEnd {
  uint32_t now;      // 1: all waits end, and their blocks touch no tensor any more
  uint32_t after_s;  // a wait of so many seconds ends the program with an error (a trap)
};

using Kernel = void (*)(LaunchArgs);
Kernel cuda_kernel(DType dtype, Op op);

// What one instruction waits for where lanes wait for each other.
struct LaneStep {
  int lane;
  bool awaited = false;  // another lane waits for it
  std::vector<WaitArg> waits = {};
};
struct LaneSteps {
  const Instruction* first_instruction;  // of the schedule
  std::vector<LaneStep> of_instruction;
  std::vector<std::byte*> signals;  // by lane; last their WaitEnd

  const LaneStep& operator[](const Instruction* x) const { return of_instruction[x - first_instruction]; }
};

// Whether a row with these instructions fits a launch of its own.
bool fits_one_launch(const std::vector<const Instruction*>& instructions, const LaneSteps* steps = nullptr);

// Throws if it does not. An engine asks before it launches anything.
void expect_fits(const std::vector<const Instruction*>& instructions);

// Collects rows, and launches them when a launch is full or `flush` is called.
class Launcher {
 public:
  using Launch = std::function<void(const KernelLaunch&)>;
  Launcher(DType dtype, Op op, int64_t elem_bytes, Launch launch, const LaneSteps* steps = nullptr);
  Launcher(DType dtype, Op op, int64_t elem_bytes, Line& line)
      : Launcher(dtype, op, elem_bytes, [&line](const KernelLaunch& launch) { line.launch(launch); }) {}

  // A row's instructions: those of one shard, in program order. `buffers` holds one address for
  // each buffer; the row covers `elems` elements from there.
  void add(const std::vector<const Instruction*>& instructions, int ranks, std::byte* const* buffers, int64_t elems);
  void flush();

 private:
  bool fits(const std::vector<const Instruction*>& instructions) const;
  void add_instructions(const std::vector<const Instruction*>& instructions, int ranks);
  int cut_into_tiles();
  size_t fill(LaunchArgs& args) const;

  DType dtype_;
  Op op_;
  int64_t elem_bytes_;
  Launch launch_;
  const LaneSteps* steps_;
  std::vector<RowArg> rows_;
  std::vector<InstructionArg> instructions_;
  std::vector<StepArg> row_steps_;
  std::vector<WaitArg> waits_;
  std::vector<std::byte*> pointers_;
  int32_t tile_elems_ = 0;
  const std::vector<const Instruction*>* last_instructions_ = nullptr;
};

// Launches all rows of a call, each taken through all instructions of its shard.
void launch_rows(const Schedule& schedule, const std::vector<Table>& tables, const Launcher::Launch& launch,
                 const LaneSteps* steps = nullptr);

}  // namespace fastreduce
