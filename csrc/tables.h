#pragma once

#include "call.h"
#include "dtypes.h"

namespace fastreduce {

// Checked tensors as the engines see them: one table per dtype. Tensors that no engine can use in place (strided
// views, lazy conjugates) are replaced by contiguous copies.
class Tables {
 public:
  Tables(const Call& call, const Schedule& schedule);
  const std::vector<Table>& all() const { return tables_; }
  void write_back() const;

 private:
  struct Copy {
    at::Tensor original;
    at::Tensor contiguous;
    bool written;
  };
  void add(const Call& call, const Schedule& schedule, int64_t index);
  std::byte* memory_of(const Call& call, const TensorLists& lists, int64_t rank, int64_t index, bool direct,
                       bool written);
  Table& table_of(const Arithmetic& kernel, int64_t elem_bytes);

  std::vector<Table> tables_;
  std::vector<Copy> copies_;
};

}  // namespace fastreduce
