#include "processes/rank_schedule.h"

#include <algorithm>
#include <map>
#include <set>
#include <stdexcept>

#include "fingerprint.h"

namespace fastreduce {
namespace {

void keep_last(std::vector<RankSchedule::Wait>& waits, int rank, uint64_t done) {
  for (RankSchedule::Wait& wait : waits)
    if (wait.rank == rank) {
      wait.done = std::max(wait.done, done);
      return;
    }
  waits.push_back({rank, done});
}

uint64_t fingerprint_of(const Schedule& schedule) {
  Fingerprint fingerprint;
  for (const Instruction& x : schedule.instructions) {
    fingerprint.add(x.rank, x.shard, x.completes);
    for (const std::vector<int>* buffers : {&x.srcs, &x.dsts}) {
      fingerprint.add(buffers->size());
      for (int buffer : *buffers) fingerprint.add(buffer);
    }
  }
  return fingerprint.value();
}

}  // namespace

RankSchedule::RankSchedule(std::shared_ptr<const Schedule> of, int rank)
    : schedule(std::move(of)), rank(rank), counts(schedule->ranks, 0), shared_(schedule->buffers * schedule->shards) {
  std::vector<uint64_t> place(schedule->instructions.size());  // by instruction: its number in its rank, from 1
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

std::optional<Schedule> with_copies(const RankSchedule& rank_schedule) {
  const Schedule& schedule = *rank_schedule.schedule;
  const int tensor = schedule.buffers;
  std::vector<Instruction> instructions;
  std::vector<std::vector<int>> waits;
  const auto add = [&](Instruction x, std::vector<int> after) {
    instructions.push_back(std::move(x));
    waits.push_back(std::move(after));
    return static_cast<int>(instructions.size()) - 1;
  };
  using Cell = std::pair<int, int>;  // buffer and shard
  std::map<Cell, std::vector<int>> writers;
  std::map<Cell, int> copied;
  std::set<Cell> seen;
  std::set<int> shards;  // that have a shared cell
  std::vector<int> number(schedule.instructions.size());
  for (size_t i = 0; i < number.size(); ++i) {
    const Instruction& x = schedule.instructions[i];
    std::vector<int> after;
    for (int earlier : schedule.waits[i]) after.push_back(number[earlier]);
    for (const std::vector<int>* buffers : {&x.srcs, &x.dsts})
      for (int buffer : *buffers) {
        if (!rank_schedule.shared(buffer, x.shard)) continue;
        const Cell cell{buffer, x.shard};
        shards.insert(x.shard);
        if (seen.insert(cell).second && buffers == &x.srcs)
          copied[cell] = add({buffer, x.shard, {tensor}, {buffer}, false}, {});
        if (copied.contains(cell)) after.push_back(copied[cell]);
      }
    number[i] = add(x, std::move(after));
    for (int dst : x.dsts)
      if (rank_schedule.shared(dst, x.shard)) writers[{dst, x.shard}].push_back(number[i]);
  }
  for (auto& [cell, written] : writers)
    add({cell.first, cell.second, {cell.first}, {tensor}, false}, std::move(written));
  for (const Instruction& x : instructions)
    if (!shards.contains(x.shard)) return std::nullopt;
  return Schedule(schedule.ranks, schedule.buffers + 1, schedule.shards, std::move(instructions), std::move(waits), {});
}

}  // namespace fastreduce
