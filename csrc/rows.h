// The memory of a call as the engines see it: raw pointers and element counts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "ops.h"

namespace fastreduce {

// Contiguous elements of one tensor, all of them in one shard, at the same place in every buffer. Their addresses are
// `Table::pointers[first_pointer + buffer]`: nullptr for a buffer without this shard (the output of another rank),
// which no instruction of the shard uses.
struct Row {
  int shard;
  int64_t elems;
  size_t first_pointer;
};

// All rows of one call that have the same dtype.
struct Table {
  DType dtype;
  Op op;
  int64_t elem_bytes;
  std::vector<Row> rows;
  std::vector<std::byte*> pointers;
};

// Of all rows, in one buffer.
inline int64_t buffer_bytes(std::span<const Table> tables) {
  int64_t bytes = 0;
  for (const Table& table : tables)
    for (const Row& row : table.rows) bytes += row.elems * table.elem_bytes;
  return bytes;
}

constexpr int64_t kLineBytes = 64;  // of a cache line

inline int64_t round_up(int64_t value, int64_t unit) { return (value + unit - 1) / unit * unit; }

// The elements of each of `parts` equal parts; the last parts may be shorter or empty. Parts begin on cache lines, so
// that no two ranks write to the same line, and vectors stay aligned.
inline int64_t part_elems(int64_t elems, int64_t parts, int64_t elem_bytes) {
  return round_up((elems + parts - 1) / parts, kLineBytes / elem_bytes);
}

// By how much an instruction divides its result. `completes`: as Instruction's.
inline int divisor_of(Op op, bool completes, int ranks) { return op == Op::avg && completes ? ranks : 1; }

}  // namespace fastreduce
