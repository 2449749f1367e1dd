#include <algorithm>

#include "simulation/program.h"

namespace fastreduce::simulation {
namespace {

constexpr int kNone = -1;

// Who touched the buffers of one shard so far.
class Touched {
 public:
  explicit Touched(int buffers) : writer_(buffers, kNone), last_read_(buffers, kNone) {}

  void forget() {
    std::fill(writer_.begin(), writer_.end(), kNone);
    std::fill(last_read_.begin(), last_read_.end(), kNone);
    reads_.clear();
  }

  void read(int buffer, int instruction, std::vector<int>& waits) {
    if (writer_[buffer] != kNone) waits.push_back(writer_[buffer]);
    reads_.push_back({instruction, last_read_[buffer]});
    last_read_[buffer] = static_cast<int>(reads_.size()) - 1;
  }

  void write(int buffer, int instruction, std::vector<int>& waits) {
    if (writer_[buffer] != kNone) waits.push_back(writer_[buffer]);
    for (int read = last_read_[buffer]; read != kNone; read = reads_[read].before)
      waits.push_back(reads_[read].instruction);
    last_read_[buffer] = kNone;
    writer_[buffer] = instruction;
  }

 private:
  struct Read {
    int instruction;
    int before;  // of the same buffer since its last write
  };
  std::vector<int> writer_;     // by buffer
  std::vector<int> last_read_;  // by buffer, an index into reads_
  std::vector<Read> reads_;
};

void tidy(std::vector<int>& waits, int itself) {
  std::sort(waits.begin(), waits.end());
  waits.erase(std::unique(waits.begin(), waits.end()), waits.end());
  const auto own = std::lower_bound(waits.begin(), waits.end(), itself);
  if (own != waits.end() && *own == itself) waits.erase(own);
}

}  // namespace

Lists by_shard(const FlatProgram& program) {
  std::vector<int64_t> place(program.shards + 1, 0);
  for (int shard : program.shard) ++place[shard + 1];
  for (int shard = 0; shard < program.shards; ++shard) place[shard + 1] += place[shard];
  const std::vector<int64_t> begins = place;
  std::vector<int> sorted(program.size());
  for (int64_t index = 0; index < program.size(); ++index)
    sorted[place[program.shard[index]]++] = static_cast<int>(index);
  Lists found;
  found.reserve(program.shards);
  for (int shard = 0; shard < program.shards; ++shard)
    found.add(std::span(sorted).subspan(begins[shard], begins[shard + 1] - begins[shard]));
  return found;
}

Lists dependencies(const FlatProgram& program) {
  Lists found;                                    // in the order of shards
  std::vector<int64_t> place_of(program.size());  // where an instruction's list is in it
  Touched touched(program.buffers);
  std::vector<int> waits;
  const Lists shards = by_shard(program);
  for (int shard = 0; shard < program.shards; ++shard) {
    touched.forget();
    for (int index : shards[shard]) {
      waits.clear();
      for (int src : program.srcs[index]) touched.read(src, index, waits);
      for (int dst : program.dsts[index]) touched.write(dst, index, waits);
      tidy(waits, index);
      place_of[index] = found.size();
      found.add(waits);
    }
  }
  Lists ordered;
  ordered.reserve(program.size());
  for (int64_t place : place_of) ordered.add(found[place]);
  return ordered;
}

std::vector<int> launches(const FlatProgram& program, const Lists& waits) {
  std::vector<int> firsts;
  for (int index = 0; index < program.size(); ++index) {
    const bool same = !firsts.empty() && program.rank[firsts.back()] == program.rank[index];
    // A launch is neighbours, and waits ascend: the last one tells whether any of them is in the launch.
    const bool free = same && (waits[index].empty() || waits[index].back() < firsts.back());
    if (!free) firsts.push_back(index);
  }
  firsts.push_back(static_cast<int>(program.size()));
  return firsts;
}

}  // namespace fastreduce::simulation
