#include "simulation/max_min.h"

#include <algorithm>
#include <limits>

namespace fastreduce::simulation {

MaxMin::MaxMin(const Lists& paths, std::vector<double> bytes_per_s)
    : paths_(paths), bytes_per_s_(std::move(bytes_per_s)), links_(bytes_per_s_.size()) {}

void MaxMin::solve(std::span<const int> used, std::span<const double> counts, std::span<double> rates) {
  open_.assign(used.begin(), used.end());
  touched_.clear();
  for (int path : open_)
    for (int link : paths_[path]) {
      if (links_[link].seen) continue;
      links_[link] = {.left = bytes_per_s_[link], .seen = true};
      touched_.push_back(link);
    }
  while (!open_.empty()) {
    divide(counts);
    settle(counts, rates);
  }
  for (int link : touched_) links_[link].seen = false;
}

// What each link can give to each of its transfers, and which links are the tightest for all of theirs.
void MaxMin::divide(std::span<const double> counts) {
  for (int link : touched_) {
    links_[link].load = links_[link].taken = 0;
    links_[link].limits_all = true;
  }
  for (int path : open_)
    for (int link : paths_[path]) links_[link].load += counts[path];
  for (int link : touched_) links_[link].share = links_[link].left / links_[link].load;  // infinite without a load
  tightest_.resize(open_.size());
  for (size_t place = 0; place < open_.size(); ++place) {
    double tightest = std::numeric_limits<double>::infinity();
    for (int link : paths_[open_[place]]) tightest = std::min(tightest, links_[link].share);
    tightest_[place] = tightest;
    for (int link : paths_[open_[place]])
      if (tightest < links_[link].share * (1 - 1e-12)) links_[link].limits_all = false;
  }
}

void MaxMin::settle(std::span<const double> counts, std::span<double> rates) {
  size_t kept = 0;
  for (size_t place = 0; place < open_.size(); ++place) {
    const int path = open_[place];
    const auto limits = [&](int link) { return links_[link].limits_all; };
    if (std::none_of(paths_[path].begin(), paths_[path].end(), limits)) {
      open_[kept++] = path;
      continue;
    }
    rates[path] = tightest_[place];
    for (int link : paths_[path]) links_[link].taken += counts[path] * rates[path];
  }
  open_.resize(kept);
  for (int link : touched_) links_[link].left -= links_[link].taken;
}

}  // namespace fastreduce::simulation
