// What an engine sees: which shard moves from which ranks to which, and where that shard lies.
// No torch in here: raw pointers, element counts and byte sizes only.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

namespace fastreduce {

enum class DType { u8, i8, i16, i32, i64, f16, bf16, f32, f64, f8_e4m3, f8_e5m2 };

enum class Op { sum, avg, prod, min, max, band, bor, bxor };

// An instruction's rank where the CPU executes it.
constexpr int kHost = -1;

// One source is a copy, many sources are a reduction in the order given.
struct Instruction {
  int rank;
  int shard;
  std::vector<int> srcs;  // buffers read
  std::vector<int> dsts;  // buffers written
  bool completes;         // the result holds every rank's contribution: avg divides here
};

// Buffers 0..ranks-1 are the ranks' tensors; collectives whose results lie elsewhere
// (reduce_scatter, all_gather) have the ranks' outputs as buffers ranks..2*ranks-1.
class Schedule {
 public:
  Schedule(int ranks, int buffers, int shards, std::vector<Instruction> instructions,
          std::vector<std::vector<int>> waits, std::vector<std::vector<int>> launches, bool whole_tensors = false)
      : id(next_id()),
        ranks(ranks),
        buffers(buffers),
        shards(shards),
        instructions(std::move(instructions)),
        waits(std::move(waits)),
        launches(std::move(launches)),
        whole_tensors(whole_tensors),
        by_shard(shards),
        written(buffers, false) {
    for (const Instruction& instruction : this->instructions) {
      by_shard.at(instruction.shard).push_back(&instruction);
      for (int dst : instruction.dsts) written.at(dst) = true;
    }
  }
  Schedule(Schedule&&) = default;  // not copied: by_shard points into instructions

  // Into how many pieces the events engine cuts each shard of so many bytes a rank, so that a rank
  // passes on the first while it receives the second. Smaller pieces than 1 MiB spend more on
  // launches than they hide. Predicted.
  int slices(int64_t nbytes) const {
    constexpr int64_t kSliceBytes = 1 << 20;
    constexpr int64_t kMaxSlices = 8;
    const bool one_step = std::all_of(waits.begin(), waits.end(), [](const auto& earlier) { return earlier.empty(); });
    return one_step ? 1 : static_cast<int>(std::clamp<int64_t>(nbytes / shards / kSliceBytes, 1, kMaxSlices));
  }

  uint64_t id;
  int ranks;
  int buffers;
  int shards;
  std::vector<Instruction> instructions;
  std::vector<std::vector<int>> waits;     // by instruction: the earlier ones it must come after
  std::vector<std::vector<int>> launches;  // neighbours of one rank that may run at the same time
  bool whole_tensors;                      // shard s is every tensor whose index is s modulo shards
  std::vector<std::vector<const Instruction*>> by_shard;  // program order within each shard
  std::vector<bool> written;                              // by buffer

 private:
  static uint64_t next_id() {
    static std::atomic<uint64_t> last{0};
    return ++last;
  }
};

// One contiguous piece of one tensor of every buffer, all of it in one shard.
// The pointers are `Table::pointers[first_pointer + buffer]`; a buffer that has no such piece
// (the output of another rank's shard) holds nullptr and is named by no instruction.
struct Row {
  int shard;
  int64_t elems;
  size_t first_pointer;
};

struct Table {
  DType dtype;
  Op op;
  int64_t elem_bytes;
  std::vector<Row> rows;
  std::vector<std::byte*> pointers;
};

// Elements of each of `parts` equal parts, the last of which may be shorter or empty. Parts begin on
// cache lines: no two ranks write the same one, and vectors stay aligned.
inline int64_t part_elems(int64_t elems, int64_t parts, int64_t elem_bytes) {
  const int64_t line_elems = 64 / elem_bytes;
  return ((elems + parts - 1) / parts + line_elems - 1) / line_elems * line_elems;
}

// Calls body(begin, end) over a partition of [0, tasks), on as many threads as it likes.
using ParallelFor = std::function<void(int64_t tasks, const std::function<void(int64_t, int64_t)>& body)>;

}  // namespace fastreduce
