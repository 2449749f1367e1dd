#include "checker.h"

#include <algorithm>

#include "queue.h"

namespace virtual_cuda {
namespace {

bool covers(const Access& outer, const Access& inner) { return outer.begin <= inner.begin && inner.end <= outer.end; }

bool conflict(const Access& a, const Access& b) { return (a.writes || b.writes) && a.begin < b.end && b.begin < a.end; }

bool before(int timeline, uint32_t tick, const Clock& clock) {
  return tick == 0 || (static_cast<size_t>(timeline) < clock.size() && clock[timeline] >= tick);
}

std::string verb(const Access& access) { return access.writes ? " writes " : " reads "; }

}  // namespace

void join(Clock& clock, const Clock& other) {
  if (clock.size() < other.size()) clock.resize(other.size());
  for (size_t i = 0; i < other.size(); ++i) clock[i] = std::max(clock[i], other[i]);
}

std::vector<std::string>& all_violations() {
  static auto* texts = new std::vector<std::string>;
  return *texts;
}

// One text once, and not without end: a loop repeats itself.
void Checker::report(const std::string& violation) {
  auto& texts = all_violations();
  if (texts.size() < 100 && std::find(texts.begin(), texts.end(), violation) == texts.end()) texts.push_back(violation);
}

// A timeline whose end the host has waited for is before everything to come: it can be used again.
int Checker::new_timeline() {
  for (size_t i = 0; i < retired_.size(); ++i) {
    const int timeline = retired_[i];
    if (!before(timeline, last_tick_[timeline], host)) continue;
    retired_.erase(retired_.begin() + static_cast<int64_t>(i));
    return timeline;
  }
  last_tick_.push_back(0);
  return static_cast<int>(last_tick_.size()) - 1;
}

void Checker::tick(int timeline, Clock& clock) {
  if (clock.size() <= static_cast<size_t>(timeline)) clock.resize(timeline + 1);
  clock[timeline] = ++last_tick_[timeline];
}

bool Checker::check(const Work& work, int timeline, const Clock& clock) {
  const bool runs = std::all_of(work.accesses.begin(), work.accesses.end(),
                                [&](const Access& access) { return reachable(work, access); });
  if (!runs) return false;
  for (const Access& access : work.accesses) conflicts(access, clock, work.name);
  for (const Access& access : work.accesses) {
    auto& past = history(access.begin);
    // Whatever conflicts with what is left out conflicts with this access as well.
    std::erase_if(past, [&](const Past& p) {
      const bool as_strong = access.writes || !p.access.writes;
      return as_strong && covers(access, p.access) && before(p.timeline, p.tick, clock);
    });
    past.push_back({access, timeline, clock[timeline], work.name});
  }
  return true;
}

// What the host knows to be done comes before all that it queues from now on. Work is not in conflict
// with itself: a kernel may write what it has read.
void Checker::conflicts(const Access& access, const Clock& clock, const std::string& name) {
  auto& past = history(access.begin);
  std::erase_if(past, [&](const Past& p) { return before(p.timeline, p.tick, host); });
  for (const Past& p : past) {
    if (!conflict(p.access, access) || before(p.timeline, p.tick, clock)) continue;
    const uintptr_t begin = std::max(p.access.begin, access.begin), end = std::min(p.access.end, access.end);
    report("unordered: " + name + verb(access) + memory_.describe(begin, end) + ", which " + p.name +
           (p.access.writes ? " writes" : " reads"));
  }
}

bool Checker::reachable(const Work& work, const Access& access) {
  const int owner = memory_.device_of(access.begin);
  auto violation = [&](const char* kind) {
    report(kind + work.name + verb(access) + memory_.describe(access.begin, access.end));
    return false;
  };
  if (owner == kNobody) return !work.kernel || violation("not visible to a device: ");
  const Allocation* allocation = memory_.find(access.begin);
  if (allocation == nullptr || access.end > allocation->end) return violation("out of bounds: ");
  if (allocation->freed) return violation("use after free: ");
  const bool peer = work.kernel && owner != kHost && owner != work.device;
  if (peer && !enabled_peers.contains({work.device, owner})) return violation("no peer access: ");
  const bool open = std::all_of(work.accesses.begin(), work.accesses.end(), [&](const Access& other) {
    const int user = work.kernel ? work.device : memory_.device_of(other.begin);
    return owner < 0 || user < 0 || memory_.open_to(*allocation, user);
  });
  return open || violation("no access to foreign memory: ");
}

std::vector<Checker::Past>& Checker::history(uintptr_t address) {
  const Allocation* allocation = memory_.find(address);
  return history_[allocation == nullptr ? 0 : allocation->begin];
}

// Who knows a tick of a timeline knows all that was before it. There are many that nothing new is on.
void Checker::host_waited(int timeline, const Clock& clock) {
  if (static_cast<size_t>(timeline) < clock.size() && !before(timeline, clock[timeline], host)) join(host, clock);
}

void Checker::host_access(const Access& access, const std::string& name) {
  const Allocation* allocation = memory_.find(access.begin);
  const bool known = memory_.device_of(access.begin) == kNobody || allocation != nullptr;
  if (!known || (allocation != nullptr && (allocation->freed || access.end > allocation->end)))
    report("invalid address: " + name + verb(access) + memory_.describe(access.begin, access.end));
  else
    conflicts(access, host, name);
}

bool Checker::check_free(const Allocation& allocation) {
  bool unused = true;
  for (const Past& p : history(allocation.begin)) {
    if (before(p.timeline, p.tick, host)) continue;
    unused = false;
    report("use after free: " + p.name + " is queued and not waited for, and" + verb(p.access) +
           memory_.describe(p.access.begin, p.access.end) + ", which is freed");
  }
  history_.erase(allocation.begin);
  return unused;
}

}  // namespace virtual_cuda
