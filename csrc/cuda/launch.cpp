#include "cuda/launch.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <span>
#include <stdexcept>
#include <string>

namespace fastreduce {
namespace {

// Vectors can be used if, after the same few single elements, all buffers are at multiples of 16 bytes. torch's
// allocations always are; otherwise all elements are handled one by one.
void align(RowArg& row, std::span<std::byte* const> pointers, int64_t elem_bytes) {
  const auto first = reinterpret_cast<uintptr_t>(pointers.front());
  uintptr_t differing = 0;
  for (const std::byte* pointer : pointers) differing |= reinterpret_cast<uintptr_t>(pointer) ^ first;
  row.vectors = differing % kVectorBytes == 0;
  const auto before = static_cast<int64_t>((kVectorBytes - first % kVectorBytes) % kVectorBytes);
  row.head_elems = static_cast<uint8_t>(row.vectors ? std::min(row.elems, before / elem_bytes) : 0);
}

// The destinations, if they are not the sources.
std::span<const int> other_dsts(const Instruction& x) { return x.srcs == x.dsts ? std::span<const int>() : x.dsts; }

size_t operands_of(const std::vector<const Instruction*>& instructions) {
  size_t operands = 0;
  for (const Instruction* x : instructions) operands += x->srcs.size() + other_dsts(*x).size();
  return operands;
}

int parameter_of(DType dtype, Op op, bool completes, int ranks) {
  return op == Op::min || op == Op::max ? flipped_bits(dtype, op) : divisor_of(op, completes, ranks);
}

size_t bytes_of(const std::vector<const Instruction*>& instructions, const LaneSteps* steps) {
  size_t bytes = instructions.size() * sizeof(InstructionArg);
  if (steps)
    for (const Instruction* x : instructions) bytes += sizeof(StepArg) + (*steps)[x].waits.size() * sizeof(WaitArg);
  return bytes;
}

// One pointer is for the padding before them.
bool fit_table(size_t rows, size_t lists_bytes, size_t pointers, const LaneSteps* steps) {
  const size_t all_pointers = pointers + (steps ? steps->signals.size() : 0) + 1;
  const size_t bytes = rows * sizeof(RowArg) + lists_bytes + all_pointers * sizeof(std::byte*);
  return bytes <= sizeof(LaunchArgs::table);
}

}  // namespace

bool fits_one_launch(const std::vector<const Instruction*>& instructions, const LaneSteps* steps) {
  return fit_table(1, bytes_of(instructions, steps), operands_of(instructions), steps);
}

void expect_fits(const std::vector<const Instruction*>& instructions) {
  if (!fits_one_launch(instructions))
    throw std::invalid_argument("fastreduce: a shard's " + std::to_string(instructions.size()) + " instructions with " +
                                std::to_string(operands_of(instructions)) +
                                " operands do not fit one launch; use fewer ranks per call");
}

Launcher::Launcher(DType dtype, Op op, int64_t elem_bytes, Launch launch, const LaneSteps* steps)
    : dtype_(dtype), op_(op), elem_bytes_(elem_bytes), launch_(std::move(launch)), steps_(steps) {}

bool Launcher::fits(const std::vector<const Instruction*>& instructions) const {
  const auto bytes = [](const auto&... entries) { return (std::span(entries).size_bytes() + ...); };
  const size_t held = bytes(instructions_, row_steps_, waits_);
  const size_t more = &instructions == last_instructions_ ? 0 : bytes_of(instructions, steps_);
  return fit_table(rows_.size() + 1, held + more, pointers_.size() + operands_of(instructions), steps_);
}

void Launcher::add_instructions(const std::vector<const Instruction*>& instructions, int ranks) {
  size_t operands = 0;
  for (const Instruction* instruction : instructions) {
    const int parameter = parameter_of(dtype_, op_, instruction->completes, ranks);
    const size_t srcs = instruction->srcs.size(), dsts = other_dsts(*instruction).size();
    instructions_.push_back({static_cast<uint16_t>(operands), static_cast<uint16_t>(srcs), static_cast<uint16_t>(dsts),
                             static_cast<uint16_t>(parameter)});
    operands += srcs + dsts;
    if (!steps_) continue;
    const LaneStep& step = (*steps_)[instruction];
    row_steps_.push_back({static_cast<uint16_t>(step.lane), static_cast<uint16_t>(waits_.size()),
                          static_cast<uint16_t>(step.waits.size()), static_cast<uint16_t>(step.awaited)});
    waits_.insert(waits_.end(), step.waits.begin(), step.waits.end());
  }
  last_instructions_ = &instructions;
}

void Launcher::add(const std::vector<const Instruction*>& instructions, int ranks, std::byte* const* buffers,
                   int64_t elems) {
  if (elems == 0 || instructions.empty()) return;
  if (!fits(instructions)) {
    expect_fits(instructions);
    flush();
  }
  if (&instructions != last_instructions_) add_instructions(instructions, ranks);
  const size_t first_pointer = pointers_.size();
  for (const Instruction* x : instructions) {
    for (int src : x->srcs) pointers_.push_back(buffers[src]);
    for (int dst : other_dsts(*x)) pointers_.push_back(buffers[dst]);
  }
  RowArg row{elems,
             0,
             static_cast<uint16_t>(first_pointer),
             static_cast<uint16_t>(instructions_.size() - instructions.size()),
             static_cast<uint16_t>(instructions_.size()),
             false,
             0};
  align(row, std::span(pointers_).subspan(first_pointer), elem_bytes_);
  rows_.push_back(row);
}

// Takes the largest tiles that are enough for all processors, or the smallest. Returns their number.
int Launcher::cut_into_tiles() {
  int vectors = 1;
  for (const InstructionArg& x : instructions_) vectors = std::max(vectors, vectors_at_a_time(x.num_srcs));
  for (int64_t bytes = vectors * kThreads * kVectorBytes;; bytes /= 2) {
    tile_elems_ = static_cast<int32_t>(bytes / elem_bytes_);
    int tiles = 0;
    for (RowArg& row : rows_) {
      row.first_tile = tiles;
      const int64_t body = std::max<int64_t>(1, row.elems - row.head_elems);
      tiles += static_cast<int>((body + tile_elems_ - 1) / tile_elems_);
    }
    if (tiles >= kEnoughTiles || bytes == kMinTileBytes) return tiles;
  }
}

// Returns the number of bytes that are used. Pointers are last, because they need an address of 8.
size_t Launcher::fill(LaunchArgs& args) const {
  size_t at = 0;
  const auto put = [&](const auto& entries) {
    const size_t begin = at;
    const auto bytes = std::as_bytes(std::span(entries));
    std::copy(bytes.begin(), bytes.end(), args.table + at);
    at += bytes.size();
    return static_cast<uint16_t>(begin);
  };
  args.num_rows = static_cast<int32_t>(rows_.size());
  args.tile_elems = tile_elems_;
  args.elem_bytes = static_cast<uint16_t>(elem_bytes_);
  put(rows_);
  args.instructions_at = put(instructions_);
  args.steps_at = put(row_steps_);
  args.waits_at = put(waits_);
  at = (at + sizeof(std::byte*) - 1) / sizeof(std::byte*) * sizeof(std::byte*);
  args.pointers_at = put(pointers_);
  args.first_signals = static_cast<uint16_t>(pointers_.size());
  args.num_lanes = args.lane = 0;
  if (steps_) {
    args.num_lanes = static_cast<uint8_t>(steps_->signals.size() - 1);
    put(steps_->signals);
  }
  return offsetof(LaunchArgs, table) + at;
}

void Launcher::flush() {
  if (rows_.empty()) return;
  const unsigned blocks = static_cast<unsigned>(cut_into_tiles());
  LaunchArgs args;
  const size_t args_bytes = fill(args);
  const auto kernel = reinterpret_cast<const void*>(cuda_kernel(dtype_, op_));
  launch_({kernel, blocks, kThreads, &args, args_bytes});
  rows_.clear();
  instructions_.clear();
  row_steps_.clear();
  waits_.clear();
  pointers_.clear();
  last_instructions_ = nullptr;
}

void launch_rows(const Schedule& schedule, const std::vector<Table>& tables, const Launcher::Launch& launch,
                 const LaneSteps* steps) {
  for (const Table& table : tables) {
    Launcher launcher(table.dtype, table.op, table.elem_bytes, launch, steps);
    for (const Row& row : table.rows)
      launcher.add(schedule.by_shard[row.shard], schedule.ranks, table.pointers.data() + row.first_pointer, row.elems);
    launcher.flush();
  }
}

}  // namespace fastreduce
