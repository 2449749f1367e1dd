// One value of every dimension for each case, so that all pairs of values meet in few cases.
#pragma once

#include <algorithm>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "programs.h"

namespace engines_test {

struct Dimension {
  std::string name;
  int values;
};

// Deals every dimension like cards: all of its values in a random order, then all again.
class Choices {
 public:
  explicit Choices(std::vector<Dimension> dimensions)
      : dimensions_(std::move(dimensions)), decks_(dimensions_.size()) {}

  // The first values are given, the others dealt.
  std::vector<int> next(std::vector<int> chosen) {
    for (size_t d = chosen.size(); d < dimensions_.size(); ++d) chosen.push_back(deal(d));
    for (size_t d = 0; d < chosen.size(); ++d)
      for (size_t e = 0; e < d; ++e) met_.insert({{e, d}, {chosen[e], chosen[d]}});
    return chosen;
  }

  void expect_all_pairs_met() const {
    for (size_t d = 0; d < dimensions_.size(); ++d)
      for (size_t e = 0; e < d; ++e)
        for (int one = 0; one < dimensions_[e].values; ++one)
          for (int other = 0; other < dimensions_[d].values; ++other)
            if (!met_.contains({{e, d}, {one, other}}))
              fail(dimensions_[e].name + " " + std::to_string(one) + " and " + dimensions_[d].name + " " +
                   std::to_string(other) + " never met");
  }

 private:
  int deal(size_t dimension) {
    std::vector<int>& deck = decks_[dimension];
    if (deck.empty()) {
      for (int value = 0; value < dimensions_[dimension].values; ++value) deck.push_back(value);
      for (size_t i = deck.size() - 1; i > 0; --i) std::swap(deck[i], deck[random_() % (i + 1)]);
    }
    const int dealt = deck.back();
    deck.pop_back();
    return dealt;
  }

  std::vector<Dimension> dimensions_;
  std::vector<std::vector<int>> decks_;
  std::mt19937 random_{1};
  std::set<std::pair<std::pair<size_t, size_t>, std::pair<int, int>>> met_;
};

}  // namespace engines_test
