// Transfers under way on links that they share: the rate of each, and when each ends.
#pragma once

#include <limits>
#include <utility>

#include "simulation/max_min.h"

namespace fastreduce::simulation {

// Transfers that end within a picosecond end together: symmetric ones differ only by rounding.
constexpr double kMomentS = 1e-12;

// All transfers on a path have the same rate. So a path keeps one count of the bytes that each of its transfers has
// moved, and a heap of the counts at which they end. The cost of a change grows with the number of paths in use, not
// with the number of transfers.
class Network {
 public:
  Network(Lists paths, std::vector<double> bytes_per_s);
  Network(const Network&) = delete;  // max_min_ points into it
  Network& operator=(const Network&) = delete;

  // From now on `bytes` go over the path; `advance` will return `transfer`.
  void start(int64_t transfer, int path, double bytes);

  // How long until the next transfer ends; infinite if there is none.
  double next_s();

  // Lets time pass, no further than `next_s`, and returns the transfers that have ended.
  const std::vector<int64_t>& advance(double seconds);

  int64_t paths_in_use() const { return static_cast<int64_t>(used_.size()); }

 private:
  using End = std::pair<double, int64_t>;  // the count of bytes at which a transfer ends, the transfer

  bool ends_next(int path) const;
  void end_transfers(int path);
  void solve();

  Lists paths_;
  MaxMin max_min_;
  std::vector<double> counts_;  // of transfers, by path, as the three below
  std::vector<double> served_;  // bytes
  std::vector<double> rates_;
  std::vector<std::vector<End>> ends_;  // heaps, the least first
  std::vector<int> used_;               // the paths with transfers
  std::vector<int64_t> ended_;
  bool solved_ = true;
};

}  // namespace fastreduce::simulation
