#include "simulation/play.h"

#include <algorithm>
#include <cmath>
#include <queue>

#include "simulation/network.h"
#include "simulation/stages.h"

namespace fastreduce::simulation {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

class Playback {
 public:
  Playback(const Tasks& tasks, const Paths& paths, std::span<const double> shard_bytes, int slices, const Costs& costs,
           Spans* spans)
      : tasks_(tasks),
        stages_(tasks, slices),
        network_(paths.links, paths.bytes_per_s),
        shard_bytes_(shard_bytes),
        costs_(costs),
        spans_(spans),
        ready_s_(stages_.size(), costs.call_s) {
    for (int64_t pair = 0; pair < paths.links.size(); ++pair) {
      double full_rate = kNever;
      for (int link : paths.links[pair]) full_rate = std::min(full_rate, paths.bytes_per_s[link]);
      delay_s_.push_back(paths.latency_s[pair] + costs.ramp_bytes / full_rate);
    }
    for (int stage = 0; stage < stages_.size(); ++stage) {
      const auto [first, end] = transfers_of(stages_[stage]);
      unfinished_.push_back(end - first + (stage > 0 && stages_.feeds_next(stage - 1)));
      waits_.push_back(stages_.waits(stage));
    }
    if (!spans) return;
    spans->stage_start_s.assign(stages_.size(), std::nan(""));
    spans->stage_end_s = spans->stage_start_s;
    spans->transfer_start_s.assign(stages_.transfers(), std::nan(""));
    spans->transfer_end_s = spans->transfer_start_s;
  }

  double until_done(const Pause& pause) {
    for (int stage = stages_.size(); stage-- > 0;)  // backwards: one may begin the next
      if (!waits_[stage]) begin(stage);
    Pacer pacer(pause);
    double now_s = 0;
    while (true) {
      // As differences: a short time added to a late one would be lost to rounding, and time would stop.
      const double due_s = starting_.empty() ? kNever : starting_.top().when_s - now_s;
      const double wait_s = std::max(0.0, std::min(network_.next_s(), due_s));
      if (wait_s == kNever) return now_s;
      pacer.count(16 * (1 + network_.paths_in_use()));  // about the steps of max-min fairness
      const auto& ended = network_.advance(wait_s);
      now_s += wait_s;
      for (int64_t id : ended) end(id, now_s);
      while (!starting_.empty() && starting_.top().when_s <= now_s + kMomentS) {
        const int64_t id = starting_.top().id;
        starting_.pop();
        start(id, now_s);
      }
    }
  }

 private:
  // A transfer of a stage: both numbers in one.
  static int64_t id_of(int stage, int transfer) { return (int64_t{stage} << 32) | transfer; }
  static int stage_of(int64_t id) { return static_cast<int>(id >> 32); }
  static int transfer_of(int64_t id) { return static_cast<int>(id); }

  struct Start {
    double when_s;
    int64_t id;
    bool operator>(const Start& other) const { return when_s > other.when_s; }
  };

  std::pair<int, int> transfers_of(const Stages::Stage& stage) const {
    const Task& task = tasks_.tasks[stage.task];
    return stage.reads ? std::pair(task.reads, task.writes) : std::pair(task.writes, task.end);
  }

  int64_t number_of(int64_t id) const { return stages_.number_of(stages_[stage_of(id)], transfer_of(id)); }

  void begin(int number) {
    const Stages::Stage stage = stages_[number];
    if (spans_) spans_->stage_start_s[number] = ready_s_[number];
    const double launched_s = ready_s_[number] + (stage.reads ? costs_.launch_s : 0);
    const auto [first, end] = transfers_of(stage);
    double flowing_s = launched_s;  // when all of its transfers move bytes
    for (int transfer = first; transfer < end; ++transfer) {
      const double start_s = launched_s + delay_s_[tasks_.transfers[transfer].pair];
      flowing_s = std::max(flowing_s, start_s);
      starting_.push({start_s, id_of(number, transfer)});
    }
    if (stages_.feeds_next(number)) release(number + 1, flowing_s);
  }

  void release(int stage, double now_s) {
    ready_s_[stage] = std::max(ready_s_[stage], now_s);
    if (!--waits_[stage]) begin(stage);
  }

  void start(int64_t id, double now_s) {
    if (spans_) spans_->transfer_start_s[number_of(id)] = now_s;
    const Transfer& transfer = tasks_.transfers[transfer_of(id)];
    network_.start(id, transfer.pair, transfer.times * shard_bytes_[transfer.shard]);
  }

  void end(int64_t id, double now_s) {
    if (spans_) spans_->transfer_end_s[number_of(id)] = now_s;
    end_part(stage_of(id), now_s);
  }

  // One of its transfers has ended, or the reads that it passes on.
  void end_part(int stage, double now_s) {
    if (--unfinished_[stage]) return;
    if (spans_) spans_->stage_end_s[stage] = now_s;
    if (stages_.feeds_next(stage)) end_part(stage + 1, now_s);
    stages_.followers(stage, [&](int follower) {
      const bool elsewhere = stages_.lane(follower) != stages_.lane(stage);
      release(follower, now_s + (elsewhere ? costs_.event_wait_s : 0));
    });
  }

  const Tasks& tasks_;
  const Stages stages_;
  Network network_;
  std::span<const double> shard_bytes_;
  const Costs costs_;
  Spans* spans_;
  std::vector<double> delay_s_;  // by pair, before the first byte moves
  std::vector<double> ready_s_;  // by stage, as the two below
  std::vector<int> waits_;       // for stages
  std::vector<int> unfinished_;  // transfers, and reads that the stage passes on
  std::priority_queue<Start, std::vector<Start>, std::greater<>> starting_;
};

}  // namespace

double play(const Tasks& tasks, const Paths& paths, std::span<const double> shard_bytes, int slices, const Costs& costs,
            const Pause& pause, Spans* spans) {
  return Playback(tasks, paths, shard_bytes, slices, costs, spans).until_done(pause);
}

}  // namespace fastreduce::simulation
