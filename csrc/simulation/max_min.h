// Max-min fair rates of transfers that share links.
#pragma once

#include "simulation/program.h"

namespace fastreduce::simulation {

// Rates are max-min fair if no transfer can get a higher rate without lowering that of another which is as slow or
// slower. The algorithm is water-filling (Bertsekas and Gallager, "Data Networks", section 6.5.2); one step settles all
// links that limit every one of their transfers.
class MaxMin {
 public:
  // A path lists its links by index into `bytes_per_s`.
  MaxMin(const Lists& paths, std::vector<double> bytes_per_s);

  // Writes the rate of each of `counts[p]` transfers on path p, for every p in `used`, whose counts are above zero.
  void solve(std::span<const int> used, std::span<const double> counts, std::span<double> rates);

 private:
  struct Link {
    double left = 0;   // what settled paths leave, in bytes per second
    double load = 0;   // transfers that are not settled
    double share = 0;  // left / load
    double taken = 0;  // in this step
    bool limits_all = true;
    bool seen = false;
  };

  void divide(std::span<const double> counts);
  void settle(std::span<const double> counts, std::span<double> rates);

  const Lists& paths_;
  const std::vector<double> bytes_per_s_;
  std::vector<Link> links_;
  std::vector<int> open_;         // paths without a rate
  std::vector<double> tightest_;  // by place in open_
  std::vector<int> touched_;      // links
};

}  // namespace fastreduce::simulation
