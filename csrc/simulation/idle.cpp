#include <algorithm>

#include "simulation/program.h"

namespace fastreduce::simulation {
namespace {

// Shards that ranks receive and send, each at a rank's own port, at which one shard takes one unit of time.
class Ports {
 public:
  explicit Ports(int ranks) : shards_(2 * ranks, 0) {}

  void move(int from, int to) {
    if (from == to) return;
    ++shards_[2 * from];
    ++shards_[2 * to + 1];
    busiest_ = std::max({busiest_, shards_[2 * from], shards_[2 * to + 1]});
    touched_.insert(touched_.end(), {2 * from, 2 * to + 1});
  }
  int64_t busiest() const { return busiest_; }
  void forget() {
    for (int port : touched_) shards_[port] = 0;
    touched_.clear();
    busiest_ = 0;
  }

 private:
  std::vector<int64_t> shards_;
  std::vector<int> touched_;
  int64_t busiest_ = 0;
};

class Lanes {
 public:
  Lanes(const FlatProgram& program, const Lists& waits, const std::vector<int>& firsts)
      : program_(program), firsts_(firsts), last_step_(program.ranks, -1) {
    std::vector<int> step_of(program.size());
    for (size_t launch = 0; launch + 1 < firsts.size(); ++launch) {
      int& step = last_step_[lane(firsts[launch])];
      for (int index = firsts[launch]; index < firsts[launch + 1]; ++index)
        for (int earlier : waits[index]) step = std::max(step, step_of[earlier]);
      ++step;
      std::fill(step_of.begin() + firsts[launch], step_of.begin() + firsts[launch + 1], step);
      if (step == static_cast<int>(steps_.size())) steps_.emplace_back();
      steps_[step].push_back(static_cast<int>(launch));
    }
  }

  double idle_shards() const {
    Ports in_step(program_.ranks), in_launch(program_.ranks), in_all(program_.ranks);
    std::vector<int64_t> busy(program_.ranks, 0), launches(program_.ranks, 0);
    int64_t in_turn = 0;
    for (const std::vector<int>& step : steps_) {
      for (int launch : step) {
        for (Ports* ports : {&in_step, &in_launch, &in_all}) add(launch, *ports);
        busy[lane(firsts_[launch])] += in_launch.busiest();
        ++launches[lane(firsts_[launch])];
        in_launch.forget();
      }
      in_turn += in_step.busiest();
      in_step.forget();
    }
    const int64_t at_once = std::max(in_all.busiest(), *std::ranges::max_element(busy));
    return static_cast<double>(in_turn - at_once) / static_cast<double>(*std::ranges::max_element(launches));
  }

 private:
  // The host's work is on rank 0's lane, as in csrc/cuda/enqueue.cpp.
  int lane(int index) const { return std::max(program_.rank[index], 0); }

  void add(int launch, Ports& ports) const {
    for (int index = firsts_[launch]; index < firsts_[launch + 1]; ++index) {
      for (int src : program_.srcs[index]) ports.move(src % program_.ranks, lane(index));
      for (int dst : program_.dsts[index]) ports.move(lane(index), dst % program_.ranks);
    }
  }

  const FlatProgram& program_;
  const std::vector<int>& firsts_;
  std::vector<int> last_step_;           // by lane
  std::vector<std::vector<int>> steps_;  // launches that come after those of the steps before
};

}  // namespace

double idle_shards(const FlatProgram& program, const Lists& waits, const std::vector<int>& launches) {
  if (waits.items() == 0) return 0;
  return std::max(0.0, Lanes(program, waits, launches).idle_shards());
}

}  // namespace fastreduce::simulation
