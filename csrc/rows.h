// The memory of a call as the engines walk it: raw pointers and element counts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "ops.h"

namespace fastreduce {

// Contiguous elements of one tensor, all of them in one shard, at the same place in every buffer.
// Their addresses are `Table::pointers[first_pointer + buffer]`: nullptr for a buffer that lacks them
// (the output of another rank's shard), which no instruction names.
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

// Elements of each of `parts` equal parts, the last of which may be shorter or empty. Parts begin on
// cache lines: no two ranks write the same one, and vectors stay aligned.
inline int64_t part_elems(int64_t elems, int64_t parts, int64_t elem_bytes) {
  const int64_t line_elems = 64 / elem_bytes;
  return ((elems + parts - 1) / parts + line_elems - 1) / line_elems * line_elems;
}

}  // namespace fastreduce
