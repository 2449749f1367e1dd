// Finds unordered conflicting accesses by vector clocks, at the moment the work is queued: what
// orders two items (streams, events, the host's waiting) is known then, whatever runs first.
#pragma once

#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "memory.h"
#include "virtual_cuda.h"

namespace virtual_cuda {

struct Work;

using Clock = std::vector<uint32_t>;  // by timeline; a stream or a lane of a graph is one
void join(Clock& clock, const Clock& other);

class Checker {
 public:
  explicit Checker(Memory& memory) : memory_(memory) {}

  int new_timeline();
  void retire_timeline(int timeline) { retired_.push_back(timeline); }
  void tick(int timeline, Clock& clock);

  // `clock` is the work's own. False: what it touches cannot be touched, it must not run.
  bool check(const Work& work, int timeline, const Clock& clock);
  void host_waited(int timeline, const Clock& clock);  // for all that the timeline has until now
  void host_access(const Access& access, const std::string& name);
  bool check_free(const Allocation& allocation);  // false: queued work still uses it
  void report(const std::string& violation);

  Clock host;                                   // what the host knows to be done
  std::set<std::pair<int, int>> enabled_peers;  // (device, whose memory its kernels may touch)

 private:
  struct Past {
    Access access;
    int timeline;
    uint32_t tick;
    std::string name;
  };
  bool reachable(const Work& work, const Access& access);
  std::vector<Past>& history(uintptr_t address);
  void conflicts(const Access& access, const Clock& clock, const std::string& name);

  Memory& memory_;
  std::map<uintptr_t, std::vector<Past>> history_;  // by allocation; 0: the process's ordinary memory
  std::vector<uint32_t> last_tick_;                 // by timeline
  std::vector<int> retired_;
};

// Kept over resets, until a test takes them.
std::vector<std::string>& all_violations();

}  // namespace virtual_cuda
