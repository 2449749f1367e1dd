// Calls of other sizes have other fingerprints. Prints "<n> cases right", or what was wrong, and exits with 1.
#include "fingerprint.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "../programs.h"

namespace {

using namespace fastreduce;
using engines_test::fail;

void add_all(std::vector<uint64_t>& found, Fingerprint of, int64_t dims, int64_t most) {
  if (dims == 0) {
    found.push_back(of.value());
    return;
  }
  for (int64_t size = 0; size <= most; ++size) {
    Fingerprint longer = of;
    longer.add(size);
    add_all(found, longer, dims - 1, most);
  }
}

void other_sizes_have_another() {
  std::vector<uint64_t> found;
  for (const auto& [dims, most] : {std::pair<int64_t, int64_t>{0, 0}, {1, 100'000}, {2, 700}, {3, 70}, {4, 20}}) {
    Fingerprint begin;
    begin.add(dims);
    add_all(found, begin, dims, most);
  }
  std::sort(found.begin(), found.end());
  if (std::adjacent_find(found.begin(), found.end()) != found.end()) fail("two have one fingerprint");
}

void the_same_numbers_have_the_same() {
  Fingerprint at_once, one_by_one;
  at_once.add(3, uint64_t{5}, true);
  for (int number : {3, 5, 1}) one_by_one.add(number);
  if (at_once.value() != one_by_one.value()) fail("one has two fingerprints");
}

}  // namespace

int main() {
  other_sizes_have_another();
  the_same_numbers_have_the_same();
  std::printf("2 cases right\n");
}
