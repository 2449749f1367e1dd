// What a rank does of a program, and for whom it waits, no longer than it must: worked out again from the words in
// rank_schedule.h. Prints "<n> programs right", or what was wrong, and exits with 1.
#include "processes/rank_schedule.h"

#include <algorithm>
#include <map>
#include <stdexcept>

#include "../programs.h"

namespace {

using namespace fastreduce;
using engines_test::fail;
using engines_test::Named;
using Waits = std::map<int, uint64_t>;  // by rank: how many of its instructions

bool has(const std::vector<int>& buffers, int buffer) {
  return std::find(buffers.begin(), buffers.end(), buffer) != buffers.end();
}

bool touches(const Instruction& x, int buffer) { return has(x.srcs, buffer) || has(x.dsts, buffer); }

// What of it is another rank's.
std::vector<int> others(const Schedule& program, const Instruction& x) {
  std::vector<int> found;
  for (int buffer = 0; buffer < program.buffers; ++buffer)
    if (touches(x, buffer) && buffer % program.ranks != x.rank) found.push_back(buffer);
  return found;
}

bool refused(const Schedule& program) {
  return std::any_of(program.instructions.begin(), program.instructions.end(), [&](const Instruction& x) {
    const std::vector<int> of_others = others(program, x);
    return x.rank == kHost || (!of_others.empty() && of_others.back() >= program.ranks);
  });
}

void expect_waits(const std::string& where, const std::vector<RankSchedule::Wait>& found, const Waits& wanted) {
  Waits by_rank;
  for (const RankSchedule::Wait& wait : found) by_rank[wait.rank] = wait.done;
  if (by_rank != wanted || found.size() != wanted.size()) fail(where + " waits for something else");
}

void expect_rank_schedule(const Named& named, int rank, const RankSchedule& rank_schedule) {
  const std::string where = named.where() + ", rank " + std::to_string(rank);
  const Schedule& program = *rank_schedule.schedule;
  std::vector<uint64_t> counts(program.ranks), place;
  std::vector<bool> shared(program.shards), seen(program.shards), read_first(program.shards), result(program.shards);
  Waits touched, written;
  size_t own = 0;
  for (size_t i = 0; i < program.instructions.size(); ++i) {
    const Instruction& x = program.instructions[i];
    place.push_back(++counts[x.rank]);
    if (touches(x, rank)) {
      if (x.rank != rank) shared[x.shard] = true;
      if (x.rank != rank) touched[x.rank] = place[i];
      if (x.rank != rank && has(x.dsts, rank)) written[x.rank] = place[i];
      if (!seen[x.shard]) read_first[x.shard] = has(x.srcs, rank);
      if (has(x.dsts, rank)) result[x.shard] = true;
      seen[x.shard] = true;
    }
    if (x.rank != rank) continue;
    if (own == rank_schedule.steps.size()) fail(where + ": a step is missing");
    const RankSchedule::Step& step = rank_schedule.steps[own++];
    if (step.instruction != &x) fail(where + ": a step is another's");
    if (step.copied != others(program, x)) fail(where + ": a step touches other peers");
    Waits before;
    for (int earlier : program.waits[i])
      if (const int peer = program.instructions[earlier].rank; peer != rank)
        before[peer] = std::max(before[peer], place[earlier]);
    expect_waits(where + ", a step", step.done, before);
  }
  std::vector<int> copy_in, copy_out;
  for (int shard = 0; shard < program.shards; ++shard) {
    if (rank_schedule.shared(rank, shard) != shared[shard]) fail(where + ": takes the wrong shards for shared");
    if (shared[shard] && read_first[shard]) copy_in.push_back(shard);
    if (shared[shard] && result[shard]) copy_out.push_back(shard);
  }
  if (own != rank_schedule.steps.size() || rank_schedule.counts != counts) fail(where + ": counts wrong");
  if (rank_schedule.copy_in != copy_in || rank_schedule.copy_out != copy_out) fail(where + ": copies other shards");
  expect_waits(where + ", for those that touch its memory,", rank_schedule.touched, touched);
  expect_waits(where + ", for those that write its memory,", rank_schedule.written, written);
}

}  // namespace

int main(int, char** arguments) {
  int count = 0;
  for (const Named& named : engines_test::read_programs(arguments[1])) {
    // The schedule outlives the parts; they share no ownership here.
    const std::shared_ptr<const Schedule> schedule(std::shared_ptr<void>(), &named.program);
    const bool wanted = !refused(named.program);
    for (int rank = 0; rank < named.program.ranks; ++rank) try {
        const RankSchedule rank_schedule(schedule, rank);
        if (!wanted) fail(named.where() + " is not refused");
        expect_rank_schedule(named, rank, rank_schedule);
      } catch (const std::invalid_argument&) {
        if (wanted) fail(named.where() + " is refused");
      }
    ++count;
  }
  std::printf("%d programs right\n", count);
}
