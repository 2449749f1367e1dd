#include "programs.h"

#include <bit>
#include <map>
#include <mutex>

namespace fastreduce {
namespace {

std::mutex schedules_mutex;
std::map<Question, std::shared_ptr<const Schedule>> schedules;
int64_t generation = 0;

}  // namespace

std::function<std::shared_ptr<const Schedule>(const Question&)> build_schedule;

int64_t size_class(int64_t nbytes) { return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(nbytes))); }

Question question_of(const Call& call) {
  if (call.algorithm != "auto" || call.collective != Collective::allreduce)
    return {call.collective, call.algorithm, call.ranks(), call.root, "", 0};
  const char* place = call.engine().place(call.devices());
  return {call.collective, call.algorithm, call.ranks(), call.root, place, size_class(call.nbytes())};
}

std::shared_ptr<const Schedule> schedule_of(const Question& question) {
  int64_t asked;
  {
    const std::lock_guard lock(schedules_mutex);
    if (const auto found = schedules.find(question); found != schedules.end()) return found->second;
    asked = generation;
  }
  // Without the lock: this waits for the GIL, and the thread that holds the GIL may wait for the lock.
  auto built = build_schedule(question);
  const std::lock_guard lock(schedules_mutex);
  // If the algorithm was replaced meanwhile, this call still uses the old one, but no later call does.
  if (asked == generation) schedules[question] = built;
  return built;
}

void forget_schedules() {
  const std::lock_guard lock(schedules_mutex);
  schedules.clear();
  ++generation;
}

}  // namespace fastreduce
