#include "simulation/proof.h"

#include <algorithm>

namespace fastreduce::simulation {
namespace {

void set(std::span<uint64_t> words, int bit) { words[bit / 64] |= uint64_t{1} << (bit % 64); }

// What every buffer of one shard holds.
class Cells {
 public:
  explicit Cells(const FlatProgram& program)
      : ranks_(program.ranks),
        words_(words_of(program)),
        once_(program.buffers * words_),
        twice_(program.buffers * words_),
        value_once_(words_),
        value_twice_(words_) {}

  void start() {
    std::fill(once_.begin(), once_.end(), 0);
    std::fill(twice_.begin(), twice_.end(), 0);
    const int buffers = static_cast<int>(once_.size() / words_);
    for (int buffer = 0; buffer < buffers; ++buffer) set(part(once_, buffer), std::min(buffer, ranks_));
  }

  // `look` sees the sources' values and their sum before it is written.
  template <class Look>
  void carry_out(std::span<const int> srcs, std::span<const int> dsts, const Look& look) {
    std::fill(value_once_.begin(), value_once_.end(), 0);
    std::fill(value_twice_.begin(), value_twice_.end(), 0);
    for (int src : srcs) {
      const auto once = this->once(src), twice = this->twice(src);
      for (size_t i = 0; i < words_; ++i) {
        value_twice_[i] |= twice[i] | (value_once_[i] & once[i]);
        value_once_[i] |= once[i];
      }
    }
    look(std::span<const uint64_t>(value_once_));
    for (int dst : dsts) {
      std::copy(value_once_.begin(), value_once_.end(), part(once_, dst).begin());
      std::copy(value_twice_.begin(), value_twice_.end(), part(twice_, dst).begin());
    }
  }

  std::span<uint64_t> once(int buffer) { return part(once_, buffer); }
  std::span<uint64_t> twice(int buffer) { return part(twice_, buffer); }

 private:
  std::span<uint64_t> part(RankSet& words, int buffer) { return std::span(words).subspan(buffer * words_, words_); }

  int ranks_;
  size_t words_;
  RankSet once_;
  RankSet twice_;
  RankSet value_once_;
  RankSet value_twice_;
};

int64_t steps_of(const FlatProgram& program, int instruction) {
  const size_t buffers = program.srcs[instruction].size() + program.dsts[instruction].size();
  return static_cast<int64_t>(buffers * words_of(program));
}

}  // namespace

size_t words_of(const FlatProgram& program) { return program.ranks / 64 + 1; }

std::optional<WrongCell> first_wrong(const FlatProgram& program, const std::vector<RankSet>& goals,
                                     std::span<const int> goal_of, const Pause& pause) {
  std::optional<WrongCell> wrong;
  Cells cells(program);
  Pacer pacer(pause);
  const Lists shards = by_shard(program);
  for (int shard = 0; shard < program.shards; ++shard) {
    cells.start();
    for (int index : shards[shard]) {
      cells.carry_out(program.srcs[index], program.dsts[index], [](auto) {});
      pacer.count(steps_of(program, index));
    }
    const int end = wrong ? wrong->buffer : program.buffers;  // a later shard is first only in an earlier buffer
    for (int buffer = 0; buffer < end; ++buffer) {
      const int goal = goal_of[int64_t{buffer} * program.shards + shard];
      if (goal < 0) continue;
      const auto once = cells.once(buffer), twice = cells.twice(buffer);
      const auto holds = [](uint64_t word) { return word != 0; };
      if (std::equal(once.begin(), once.end(), goals[goal].begin()) && std::none_of(twice.begin(), twice.end(), holds))
        continue;
      wrong = WrongCell{buffer, shard, RankSet(once.begin(), once.end()), RankSet(twice.begin(), twice.end())};
      break;
    }
    pacer.count(static_cast<int64_t>(program.buffers * words_of(program)));
  }
  return wrong;
}

std::vector<bool> completes(const FlatProgram& program, const Pause& pause) {
  std::vector<bool> found(program.size());
  RankSet everyone(words_of(program));
  for (int rank = 0; rank < program.ranks; ++rank) set(everyone, rank);
  const auto is_everyone = [&](auto words) { return std::equal(words.begin(), words.end(), everyone.begin()); };
  Cells cells(program);
  Pacer pacer(pause);
  const Lists shards = by_shard(program);
  for (int shard = 0; shard < program.shards; ++shard) {
    cells.start();
    for (int index : shards[shard]) {
      const auto srcs = program.srcs[index];
      cells.carry_out(srcs, program.dsts[index], [&](auto value) {
        const auto complete = [&](int src) { return is_everyone(cells.once(src)); };
        found[index] = is_everyone(value) && std::none_of(srcs.begin(), srcs.end(), complete);
      });
      pacer.count(steps_of(program, index));
    }
  }
  return found;
}

}  // namespace fastreduce::simulation
