#include "simulation/network.h"

#include <algorithm>

namespace fastreduce::simulation {

Network::Network(Lists paths, std::vector<double> bytes_per_s)
    : paths_(std::move(paths)),
      max_min_(paths_, std::move(bytes_per_s)),
      counts_(paths_.size()),
      served_(paths_.size()),
      rates_(paths_.size()),
      ends_(paths_.size()) {}

void Network::start(int64_t transfer, int path, double bytes) {
  if (ends_[path].empty()) used_.push_back(path);
  ends_[path].emplace_back(served_[path] + bytes, transfer);
  std::push_heap(ends_[path].begin(), ends_[path].end(), std::greater<>());
  counts_[path] += 1;
  solved_ = false;
}

double Network::next_s() {
  solve();
  double least = std::numeric_limits<double>::infinity();
  for (int path : used_)
    if (rates_[path] > 0) least = std::min(least, (ends_[path].front().first - served_[path]) / rates_[path]);
  return std::max(0.0, least);
}

const std::vector<int64_t>& Network::advance(double seconds) {
  solve();
  ended_.clear();
  for (int path : used_) {
    served_[path] += rates_[path] * seconds;
    if (ends_next(path)) end_transfers(path);
  }
  if (!ended_.empty()) std::erase_if(used_, [&](int path) { return ends_[path].empty(); });
  return ended_;
}

bool Network::ends_next(int path) const {
  return !ends_[path].empty() && ends_[path].front().first - served_[path] <= rates_[path] * kMomentS;
}

void Network::end_transfers(int path) {
  auto& ends = ends_[path];
  while (ends_next(path)) {
    ended_.push_back(ends.front().second);
    std::pop_heap(ends.begin(), ends.end(), std::greater<>());
    ends.pop_back();
  }
  if (ends.empty()) served_[path] = 0;  // long sums lose digits
  counts_[path] = static_cast<double>(ends.size());
  solved_ = false;
}

void Network::solve() {
  if (!solved_) max_min_.solve(used_, counts_, rates_);
  solved_ = true;
}

}  // namespace fastreduce::simulation
