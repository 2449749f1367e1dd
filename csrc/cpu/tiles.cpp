#include "cpu/tiles.h"

#include <algorithm>
#include <array>

#include "cpu/kernels.h"

namespace fastreduce {
namespace {

// The tiles of all buffers together must fit into the L2 cache (8 ranks: 128 KiB). Tiles of 4, 8, 32 and 64 KiB were
// neither faster nor slower by more than calls of one kind differ, up to 10 % for most (2, 4 and 8 ranks, 256 KiB to
// 16 MiB each, medians of 15; 2 virtual cores of an AMD EPYC, family 26 model 2, 1 MiB of L2 each, 2026-11-27).
constexpr int64_t kTileBytes = 16 * 1024;

// Up to this size, of all buffers together, waking a second thread costs more than it saves. Two threads took 1.1 to
// 1.9 times as long as one at 192 KiB, 0.99 to 1.05 at 256 KiB and 0.78 to 0.88 at 512 KiB. Measured with float32 in
// cache, on 2, 4 and 8 ranks, as medians over 360 to 2,200 rounds in which one thread and two took turns of 20 calls
// (2 virtual cores of a Xeon with AVX-512, torch 2.13, 2026-11-22).
constexpr int64_t kSerialBytes = 256 * 1024;

// The pointer lists of one instruction. For up to 64 buffers they are on the stack, without an allocation.
class Pointers {
 public:
  explicit Pointers(size_t buffers) : heap_(buffers > stack_.size() ? buffers : 0) {}
  std::byte** data() { return heap_.empty() ? stack_.data() : heap_.data(); }

 private:
  std::array<std::byte*, 64> stack_;
  std::vector<std::byte*> heap_;
};

struct Tiles {
  const Schedule& schedule;
  const Table& table;
  Reduce reduce;
  int64_t tile_elems;
  std::vector<int64_t> first_tile;  // by row, and the total behind the last

  Tiles(const Schedule& schedule, const Table& table)
      : schedule(schedule),
        table(table),
        reduce(cpu_kernels().select(table.dtype, table.op)),
        tile_elems(std::max<int64_t>(1, kTileBytes / table.elem_bytes)),
        first_tile(table.rows.size() + 1, 0) {
    for (size_t r = 0; r < table.rows.size(); ++r)
      first_tile[r + 1] = first_tile[r] + (table.rows[r].elems + tile_elems - 1) / tile_elems;
  }

  void run(int64_t begin, int64_t end) const {
    Pointers srcs(schedule.buffers), dsts(schedule.buffers);
    size_t r = std::upper_bound(first_tile.begin(), first_tile.end(), begin) - first_tile.begin() - 1;
    for (int64_t tile = begin; tile < end; ++tile) {
      while (tile >= first_tile[r + 1]) ++r;
      const Row& row = table.rows[r];
      const int64_t at = (tile - first_tile[r]) * tile_elems;
      for (const Instruction* instruction : schedule.by_shard[row.shard])
        execute(*instruction, row, at, std::min(tile_elems, row.elems - at), srcs.data(), dsts.data());
    }
  }

  void execute(const Instruction& instruction, const Row& row, int64_t at, int64_t elems, std::byte** srcs,
               std::byte** dsts) const {
    std::byte* const* buffers = table.pointers.data() + row.first_pointer;
    const int num_srcs = static_cast<int>(instruction.srcs.size());
    const int num_dsts = static_cast<int>(instruction.dsts.size());
    for (int s = 0; s < num_srcs; ++s) srcs[s] = buffers[instruction.srcs[s]] + at * table.elem_bytes;
    for (int d = 0; d < num_dsts; ++d) dsts[d] = buffers[instruction.dsts[d]] + at * table.elem_bytes;
    const int divisor = divisor_of(table.op, instruction.completes, schedule.ranks);
    reduce(srcs, num_srcs, dsts, num_dsts, elems, divisor);
  }
};

}  // namespace

void run_tiles(const Schedule& schedule, const Table& table, const ParallelFor& parallel_for) {
  const Tiles tiles(schedule, table);
  const int64_t count = tiles.first_tile.back();
  if (buffer_bytes({&table, 1}) * schedule.buffers <= kSerialBytes)
    tiles.run(0, count);
  else
    parallel_for(count, [&](int64_t begin, int64_t end) { tiles.run(begin, end); });
}

}  // namespace fastreduce
