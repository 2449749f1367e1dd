// An executor that works as a GPU does: some time after it is told to, and in any order between two flushes.
#pragma once

#include <cstring>
#include <functional>
#include <vector>

#include "cpu/kernels.h"
#include "processes/executor.h"

namespace fastreduce {

class LateExecutor : public Executor {
 public:
  // So many looks find it at work; the next one, that it is done.
  LateExecutor(Reduce reduce, std::vector<std::vector<std::byte>>& stagings, int looks)
      : reduce_(reduce), stagings_(stagings), looks_(looks) {}

  int64_t staging_bytes() const override { return static_cast<int64_t>(stagings_[0].size()); }
  int64_t slice_bytes() const override { return staging_bytes(); }
  std::byte* staging(int rank) const override { return stagings_[rank].data(); }

  void copy(std::byte* to, const std::byte* from, int64_t elems) override {
    told_.push_back([=] { std::memcpy(to, from, elems * 4); });
  }

  void execute(const Instruction& x, std::byte* const* pointers, int64_t elems) override {
    std::vector<std::byte*> srcs, dsts;
    for (int src : x.srcs) srcs.push_back(pointers[src]);
    for (int dst : x.dsts) dsts.push_back(pointers[dst]);
    told_.push_back([this, srcs, dsts, elems] {
      reduce_(srcs.data(), static_cast<int>(srcs.size()), dsts.data(), static_cast<int>(dsts.size()), elems, 1);
    });
  }

  // What was told last is done first.
  void flush() override {
    flushed_.insert(flushed_.end(), told_.rbegin(), told_.rend());
    told_.clear();
  }

  bool idle() override {
    if (flushed_.empty()) return true;
    if (looked_++ < looks_) return false;
    looked_ = 0;
    for (const auto& work : flushed_) work();
    flushed_.clear();
    return true;
  }

 private:
  const Reduce reduce_;
  std::vector<std::vector<std::byte>>& stagings_;
  std::vector<std::function<void()>> told_, flushed_;
  const int looks_;
  int looked_ = 0;
};

}  // namespace fastreduce
