// One value of every dimension for each case, so that all pairs of values meet in few cases.
#pragma once

#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "../programs.h"

namespace engines_test {

struct Dimension {
  std::string name;
  int values;
};

class Choices {
 public:
  explicit Choices(std::vector<Dimension> dimensions) : dimensions_(std::move(dimensions)) {}

  // The first values are given, the others chosen: each time what has met the least of the values
  // before it, and of those what was chosen the fewest times.
  std::vector<int> next(std::vector<int> chosen) {
    for (int d = static_cast<int>(chosen.size()); d < static_cast<int>(dimensions_.size()); ++d) {
      std::pair<int, int> least{INT32_MAX, 0};
      int best = 0;
      for (int value = 0; value < dimensions_[d].values; ++value) {
        const std::pair<int, int> known{met_before(chosen, d, value), met_[{d, d, value, value}]};
        if (known < least) least = known, best = value;
      }
      chosen.push_back(best);
    }
    for (int d = 0; d < static_cast<int>(chosen.size()); ++d)
      for (int e = 0; e <= d; ++e) ++met_[{e, d, chosen[e], chosen[d]}];
    return chosen;
  }

  void expect_all_pairs_met() const {
    for (int d = 0; d < static_cast<int>(dimensions_.size()); ++d)
      for (int e = 0; e < d; ++e)
        for (int one = 0; one < dimensions_[e].values; ++one)
          for (int other = 0; other < dimensions_[d].values; ++other)
            if (!met_.contains({e, d, one, other}))
              fail(dimensions_[e].name + " " + std::to_string(one) + " and " + dimensions_[d].name + " " +
                   std::to_string(other) + " never met");
  }

 private:
  int met_before(const std::vector<int>& chosen, int d, int value) const {
    int met = 0;
    for (int e = 0; e < d; ++e) met += met_.contains({e, d, chosen[e], value});
    return met;
  }

  std::vector<Dimension> dimensions_;
  std::map<std::tuple<int, int, int, int>, int> met_;  // two dimensions, a value of each: in how many cases
};

}  // namespace engines_test
