#include "programs.h"

#include <pthread.h>

#include <bit>
#include <map>
#include <mutex>

namespace fastreduce {
namespace {

std::mutex schedules_mutex;
std::map<Question, std::shared_ptr<const Schedule>> schedules;
int64_t generation = 0;

// A fork may be made while another thread has the lock, which the new process then finds free.
[[maybe_unused]] const int is_free_in_forks =
    pthread_atfork([] { schedules_mutex.lock(); }, [] { schedules_mutex.unlock(); }, [] { schedules_mutex.unlock(); });

}  // namespace

std::function<std::shared_ptr<const Schedule>(const Question&)> build_schedule;
std::function<std::string()> algorithm_of_environment;
std::function<void(const std::string&)> look_at_file;

int64_t size_class(int64_t nbytes) { return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(nbytes))); }

bool is_to_be_chosen(Collective collective, const std::string& algorithm) {
  return algorithm == "auto" && collective == Collective::allreduce;
}

Question question_of(const Call& call) {
  Question question{call.collective, call.algorithm, call.ranks(), call.root};
  if (!is_to_be_chosen(call.collective, call.algorithm)) return question;
  question.place = call.engine().place(call.devices());
  question.nbytes = size_class(call.nbytes());
  question.variable = call.variable ? *call.variable : algorithm_of_environment();
  return question;
}

Question question_of(Collective collective, int64_t ranks, int64_t root, int64_t nbytes, const std::string& variable) {
  Question question{collective, "auto", ranks, root, "processes"};
  if (!is_to_be_chosen(collective, question.algorithm)) return question;
  question.nbytes = size_class(nbytes);
  question.variable = variable;
  return question;
}

std::shared_ptr<const Schedule> schedule_of(const Question& question) {
  for (const std::string* name : {&question.algorithm, &question.variable})
    if (name->starts_with("file:")) look_at_file(*name);
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
