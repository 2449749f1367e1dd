#include "cuda/launch.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <stdexcept>
#include <string>
#include <tuple>

#include "cuda/raii.h"

namespace fastreduce {
namespace {

// The number of blocks that fills the device, computed once per kernel and device.
int full_grid(Kernel kernel, int device) {
  static std::mutex mutex;
  static std::map<std::tuple<Kernel, int>, int> known;
  std::lock_guard lock(mutex);
  int& grid = known[{kernel, device}];
  if (grid == 0) {
    const RelaxedCapture relaxed;  // the kernel may be loaded only now
    const DeviceGuard guard(device);
    int blocks = 0, processors = 0;
    cuda_check(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, kThreads, 0),
               "cudaOccupancyMaxActiveBlocksPerMultiprocessor");
    cuda_check(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device), "cudaDeviceGetAttribute");
    grid = std::max(1, blocks * processors);
  }
  return grid;
}

// Vectors can be used if, after the same few single elements, all buffers are at multiples of 16 bytes. torch's
// allocations always are; otherwise all elements are handled one by one.
void align(RowArg& row, std::byte* const* pointers, const std::vector<int>& used, int64_t elem_bytes) {
  constexpr uintptr_t kVectorBytes = 16;
  const auto address = [&](int buffer) { return reinterpret_cast<uintptr_t>(pointers[buffer]); };
  uintptr_t differing = 0;
  for (int buffer : used) differing |= address(buffer) ^ address(used.front());
  row.vectors = differing % kVectorBytes == 0;
  const auto before = static_cast<int64_t>((kVectorBytes - address(used.front()) % kVectorBytes) % kVectorBytes);
  row.head_elems = static_cast<uint8_t>(row.vectors ? std::min(row.elems, before / elem_bytes) : 0);
}

std::vector<int> used_buffers(const std::vector<const Instruction*>& instructions) {
  std::vector<int> used;
  for (const Instruction* instruction : instructions) {
    used.insert(used.end(), instruction->srcs.begin(), instruction->srcs.end());
    used.insert(used.end(), instruction->dsts.begin(), instruction->dsts.end());
  }
  return used;
}

}  // namespace

Launcher::Launcher(DType dtype, Op op, int64_t elem_bytes, Line& line)
    : dtype_(dtype), op_(op), elem_bytes_(elem_bytes), line_(line) {
  args_.elem_bytes = static_cast<int32_t>(elem_bytes);
}

bool Launcher::fits(const std::vector<const Instruction*>& instructions, int num_pointers) const {
  if (args_.num_rows == kMaxRows || num_pointers_ + num_pointers > kMaxPointers) return false;
  if (&instructions == last_instructions_) return true;
  return num_instructions_ + static_cast<int>(instructions.size()) <= kMaxInstructions &&
         num_operands_ + static_cast<int>(used_buffers(instructions).size()) <= kMaxOperands;
}

void Launcher::add_instructions(const std::vector<const Instruction*>& instructions, int ranks) {
  for (const Instruction* instruction : instructions) {
    args_.instructions[num_instructions_++] = {
        static_cast<uint16_t>(num_operands_), static_cast<uint16_t>(instruction->srcs.size()),
        static_cast<uint16_t>(instruction->dsts.size()),
        static_cast<uint16_t>(op_ == Op::avg && instruction->completes ? ranks : 1)};
    for (const auto* buffers : {&instruction->srcs, &instruction->dsts})
      for (int buffer : *buffers) args_.operands[num_operands_++] = static_cast<uint16_t>(buffer);
  }
  last_instructions_ = &instructions;
}

void Launcher::add(const std::vector<const Instruction*>& instructions, int ranks, std::byte* const* pointers,
                   int num_pointers, int64_t elems) {
  if (elems == 0 || instructions.empty()) return;
  if (!fits(instructions, num_pointers)) flush();
  if (!fits(instructions, num_pointers))
    throw std::invalid_argument("fastreduce: " + std::to_string(num_pointers) +
                                " buffers and their instructions do not fit one launch; use fewer ranks a call");
  if (&instructions != last_instructions_) add_instructions(instructions, ranks);
  const int count = static_cast<int>(instructions.size());
  RowArg row{elems,
             0,
             static_cast<uint16_t>(num_pointers_),
             static_cast<uint16_t>(num_instructions_ - count),
             static_cast<uint16_t>(num_instructions_),
             false,
             0};
  align(row, pointers, used_buffers(instructions), elem_bytes_);
  args_.rows[args_.num_rows++] = row;
  std::copy_n(pointers, num_pointers, args_.pointers + num_pointers_);
  num_pointers_ += num_pointers;
}

// Takes the largest tiles that give every block at least one, or the smallest tiles if none do.
void Launcher::cut_into_tiles(int blocks) {
  for (int64_t bytes = kMaxTileBytes; bytes >= kMinTileBytes; bytes /= 2) {
    args_.tile_elems = static_cast<int32_t>(bytes / elem_bytes_);
    args_.num_tiles = 0;
    for (int r = 0; r < args_.num_rows; ++r) {
      RowArg& row = args_.rows[r];
      row.first_tile = args_.num_tiles;
      const int64_t body = std::max<int64_t>(1, row.elems - row.head_elems);
      args_.num_tiles += static_cast<int32_t>((body + args_.tile_elems - 1) / args_.tile_elems);
    }
    if (args_.num_tiles >= blocks) return;
  }
}

void Launcher::flush() {
  if (args_.num_rows == 0) return;
  const Kernel kernel = cuda_kernel(dtype_, op_);
  const int blocks = full_grid(kernel, line_.device());
  cut_into_tiles(blocks);
  line_.launch({reinterpret_cast<const void*>(kernel), static_cast<unsigned>(std::min(args_.num_tiles, blocks)),
                kThreads, &args_, sizeof args_});
  args_.num_rows = 0;
  num_pointers_ = num_instructions_ = num_operands_ = 0;
  last_instructions_ = nullptr;
}

}  // namespace fastreduce
