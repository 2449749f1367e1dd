// One call's tensors as bytes: where they lie, what they hold before and must hold behind it.
#pragma once

#include "../programs.h"
#include "rows.h"
#include "values.h"

namespace engines_test {

// How far from a multiple of 64 bytes the tensors begin: all of them, and each rank's further than
// those of the rank before.
struct Shift {
  int64_t elems;
  int64_t bytes_per_rank;
};

using Images = std::vector<std::vector<std::byte>>;  // by buffer: its tensors and what lies between

class Content {
 public:
  Content(const Named& named, Arithmetic arithmetic, Data data, std::vector<int64_t> lengths, Shift shift);

  int buffers() const { return named_.program.buffers; }
  int ranks() const { return named_.program.ranks; }
  int64_t bytes(int buffer) const { return bytes_[buffer]; }

  Table table(const std::vector<std::byte*>& memory) const;
  // Between the tensors, and where nothing was contributed, lies what nobody may change.
  Images before() const;
  // The program's goal, reached by the loop.
  Images wanted(const Images& before) const;
  void expect_same(Images found, Images wanted, const std::string& where) const;

 private:
  int64_t elem_bytes() const;
  // A collective's whole tensor is all shards, each of the given length; elsewhere it has that length.
  bool is_of_shards() const;
  int64_t elems(size_t tensor) const { return lengths_[tensor] * (is_of_shards() ? named_.program.shards : 1); }
  // Calls visit(tensor, shard, its first element in the tensor, elements, where it lies in each
  // buffer: -1 for nowhere). Shards do not begin on cache lines here, which is the harder case.
  template <class Visit>
  void for_each_piece(const Visit& visit) const;
  template <class T>
  std::vector<T> contributed(const Images& images, const std::vector<int>& goal, const std::vector<int64_t>& at,
                             int64_t elems) const;
  void make_nans_alike(Images& images) const;

  const Named& named_;
  Arithmetic arithmetic_;
  Data data_;
  std::vector<int64_t> lengths_;
  std::vector<std::vector<int64_t>> begins_;  // by buffer and tensor, in bytes
  std::vector<int64_t> bytes_;                // by buffer
};

}  // namespace engines_test
