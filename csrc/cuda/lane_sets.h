#pragma once

#include <atomic>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "cuda/lanes.h"

namespace fastreduce {

// The lanes of the events engine, by device and number. A user may replay a captured graph while another call runs, and
// both would write to the same staging memory. So the calls in one capture have lanes that no other call uses, until
// the user's graph is gone. These sets of lanes are never destroyed, because CUDA may still tell them that a graph is
// gone.
class LaneSets {
 public:
  using Set = std::map<std::pair<int, int>, std::unique_ptr<Lane>>;
  Set& of(const std::optional<Capture>& capture);

 private:
  struct CapturedSet {
    unsigned long long capture_id = 0;
    std::atomic<bool> in_use = false;
    Set lanes;
  };
  CapturedSet& unused();

  Set outside_captures_;
  std::list<CapturedSet> captured_;
};

}  // namespace fastreduce
