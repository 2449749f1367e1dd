#include "processes/plan.h"

#include <c10/util/hash.h>

#include <algorithm>
#include <set>
#include <stdexcept>

namespace fastreduce {
namespace {

void keep_last(std::vector<RankPlan::Wait>& waits, int rank, uint64_t done) {
  for (RankPlan::Wait& wait : waits)
    if (wait.rank == rank) {
      wait.done = std::max(wait.done, done);
      return;
    }
  waits.push_back({rank, done});
}

uint64_t fingerprint_of(const Schedule& schedule) {
  size_t hash = 0;
  const auto add = [&](size_t number) { hash = c10::hash_combine(hash, number); };
  for (const Instruction& x : schedule.instructions) {
    add(x.rank);
    add(x.shard);
    for (const std::vector<int>* buffers : {&x.srcs, &x.dsts}) {
      add(buffers->size());
      for (int buffer : *buffers) add(buffer);
    }
  }
  return hash;
}

}  // namespace

RankPlan::RankPlan(std::shared_ptr<const Schedule> of, int rank)
    : schedule(std::move(of)), rank(rank), counts(schedule->ranks, 0), shared_(schedule->buffers * schedule->shards) {
  std::vector<uint64_t> place(schedule->instructions.size());  // by instruction: which of its rank's, from 1
  std::set<int> in, out, seen;                                 // shards of this rank's buffer
  for (size_t i = 0; i < place.size(); ++i) {
    const Instruction& x = schedule->instructions[i];
    if (x.rank == kHost) throw std::invalid_argument("a program with instructions of the host runs in one process");
    place[i] = ++counts[x.rank];
    for (const std::vector<int>* buffers : {&x.srcs, &x.dsts})
      for (int buffer : *buffers) {
        if (owner(buffer) == x.rank) continue;
        if (buffer >= schedule->ranks) throw std::invalid_argument("across processes each rank writes its own outputs");
        shared_[buffer * schedule->shards + x.shard] = true;
        if (owner(buffer) != rank) continue;
        keep_last(touched, x.rank, place[i]);
        if (buffers == &x.dsts) keep_last(written, x.rank, place[i]);
      }
  }
  for (size_t i = 0; i < place.size(); ++i) {
    const Instruction& x = schedule->instructions[i];
    const auto touches_mine = [&](const std::vector<int>& buffers) {
      return std::find(buffers.begin(), buffers.end(), rank) != buffers.end() && shared(rank, x.shard);
    };
    if (touches_mine(x.srcs) && !seen.count(x.shard)) in.insert(x.shard);
    if (touches_mine(x.dsts)) out.insert(x.shard);
    if (touches_mine(x.srcs) || touches_mine(x.dsts)) seen.insert(x.shard);
    if (x.rank != rank) continue;
    Step& step = steps.emplace_back(Step{&x, {}, {}});
    std::set<int> peers;
    for (const std::vector<int>* buffers : {&x.srcs, &x.dsts})
      for (int buffer : *buffers)
        if (owner(buffer) != rank) peers.insert(owner(buffer));
    step.copied.assign(peers.begin(), peers.end());
    for (int earlier : schedule->waits[i])
      if (const int other = schedule->instructions[earlier].rank; other != rank)
        keep_last(step.done, other, place[earlier]);
  }
  fingerprint = fingerprint_of(*schedule);
  copy_in.assign(in.begin(), in.end());
  copy_out.assign(out.begin(), out.end());
}

}  // namespace fastreduce
