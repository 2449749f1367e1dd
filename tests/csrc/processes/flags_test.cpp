// Drives the engine for processes with threads as ranks, under sanitizers. Prints "<n> cases right", or what was wrong,
// and exits with 1.
#include "processes/flags.h"

#include <algorithm>
#include <barrier>
#include <thread>

#include "../programs.h"
#include "late_executor.h"
#include "rows.h"

namespace {

using namespace fastreduce;
using engines_test::fail;
using engines_test::Named;

constexpr std::chrono::seconds kTimeout{10};
constexpr int kRounds = 3;

// A value tells its element, and a sum of such values tells whose they are.
uint32_t value(int rank, int64_t elem, int round) {
  return static_cast<uint32_t>((elem + round) % 7 + 1) << (3 * rank);
}

uint32_t sum_of(const std::vector<int>& ranks, int64_t elem, int round) {
  uint32_t sum = 0;
  for (int rank : ranks) sum += value(rank, elem, round);
  return sum;
}

// Where the work is done: from staging memory, on tensors that peers reach themselves, by devices that work while the
// CPU goes on, or by such devices of which one does not reach its peers, so that nothing is done.
enum class Mode { staged, reachable, devices, unreached_devices };

struct Case {
  const Named& named;
  std::vector<int64_t> elems;  // of each tensor
  Mode mode;

  std::string where() const {
    return named.where() + ", " + std::to_string(elems.size()) + " tensors, the first of " + std::to_string(elems[0]) +
           ", mode " + std::to_string(static_cast<int>(mode));
  }
};

// The staging memory of all ranks' devices.
using Stagings = std::vector<std::vector<std::byte>>;

// A rank's tensors of one kind, one behind the other, in memory that others may open.
class Tensors {
 public:
  explicit Tensors(int64_t elems) : memory_(SharedMemory::create((elems * 4 + 4096) / 4096 * 4096)) {}
  uint32_t* at(int64_t elem) const { return reinterpret_cast<uint32_t*>(memory_.data()) + elem; }
  const SharedMemory::Address& address() const { return memory_.address(); }

 private:
  SharedMemory memory_;
};

// Does its first work when it is told to.
class VeryLate final : public LateExecutor {
 public:
  VeryLate(Stagings& stagings, std::function<void()> wait)
      : LateExecutor(cpu_kernels().select(DType::i32, Op::sum), stagings, 0), wait_(std::move(wait)) {}

  bool idle() override {
    if (wait_) std::exchange(wait_, nullptr)();
    return LateExecutor::idle();
  }

 private:
  std::function<void()> wait_;
};

class Rank {
 public:
  Rank(const Case& test, int rank)
      : test_(test), program_(test.named.program), rank_(rank), in_place_(program_.buffers == program_.ranks) {
    for (int64_t elems : test.elems) total_ += elems;
    in_ = std::make_unique<Tensors>(total_);
    out_ = std::make_unique<Tensors>(total_);
  }

  FlagsCall call(const RankSchedule& rank_schedule) const {
    FlagsCall call{rank_schedule, DType::i32, Op::sum, 4, items(), {}, kTimeout};
    call.announcement.describe(test_.where());
    if (test_.mode == Mode::reachable) call.announcement.memory = in_->address();
    return call;
  }

  void run(Group& group, const RankSchedule& rank_schedule, Stagings& stagings) {
    for (int round = 0; round < kRounds; ++round) {
      for (int64_t e = 0; e < total_; ++e) *in_->at(e) = value(rank_, e, round);
      const bool ran = run_by_mode(group, call(rank_schedule), stagings, round);
      if (ran != (test_.mode != Mode::unreached_devices)) fail(test_.where() + ": some ranks ran, some did not");
      ran ? check(round) : check_untouched(round);
    }
  }

 private:
  bool run_by_mode(Group& group, const FlagsCall& call, Stagings& stagings, int round) const {
    if (test_.mode == Mode::staged || test_.mode == Mode::reachable) return run_flags(group, call), true;
    LateExecutor executor(cpu_kernels().select(DType::i32, Op::sum), stagings, (round + 1) % 2);
    return run_flags(group, call, executor,
                     [&] { return group.all(rank_ > 0 || test_.mode != Mode::unreached_devices); });
  }

  void check_untouched(int round) const {
    for (int64_t e = 0; e < total_; ++e)
      if (*in_->at(e) != value(rank_, e, round)) fail(test_.where() + ": an input was written");
  }

  // Both kinds as whole tensors, cut into shards; where a tensor holds one shard only, the others are left out.
  std::vector<Item> items() const {
    std::vector<Item> items;
    int64_t first = 0;
    for (int64_t elems : test_.elems) {
      Item& item = items.emplace_back();
      item.part_elems = part_elems(elems, program_.shards, 4);
      for (int shard = 0; shard < program_.shards; ++shard) {
        const int64_t begin = std::min(shard * item.part_elems, elems);
        const int64_t length = std::min(item.part_elems, elems - begin);
        item.in.push_back({reinterpret_cast<std::byte*>(in_->at(first + begin)), length, first + begin});
        item.out.push_back({reinterpret_cast<std::byte*>((in_place_ ? in_ : out_)->at(first + begin)), length, 0});
      }
      first += elems;
    }
    return items;
  }

  void check(int round) const {
    const int buffer = in_place_ ? rank_ : program_.ranks + rank_;
    int64_t first = 0;
    for (int64_t elems : test_.elems) {
      const int64_t part = part_elems(elems, program_.shards, 4);
      for (int64_t e = 0; e < elems; ++e) {
        const std::vector<int>& goal = test_.named.goal(buffer, static_cast<int>(e / part));
        const uint32_t found = *(in_place_ ? in_ : out_)->at(first + e);
        if (!goal.empty() && found != sum_of(goal, first + e, round))
          fail(test_.where() + ": wrong value " + std::to_string(found) + " on rank " + std::to_string(rank_) +
               ", element " + std::to_string(first + e) + ", round " + std::to_string(round));
      }
      first += elems;
    }
  }

  const Case& test_;
  const Schedule& program_;
  const int rank_;
  const bool in_place_;
  int64_t total_ = 0;
  std::unique_ptr<Tensors> in_, out_;
};

using Body = std::function<void(Group&, const RankSchedule&, std::barrier<>&)>;

// A thread for each rank, all of which have joined.
void with_ranks(const Case& test, size_t staging_bytes, const Body& body) {
  const int k = test.named.program.ranks;
  // The schedule outlives the parts; they share no ownership here.
  const std::shared_ptr<const Schedule> schedule(std::shared_ptr<void>(), &test.named.program);
  std::vector<std::string> names(k), invitations(k);
  for (int r = 0; r < k; ++r) names[r] = std::to_string(r);
  std::barrier all_there(k);
  std::vector<std::jthread> ranks;
  for (int r = 0; r < k; ++r)
    ranks.emplace_back([&, r] {
      try {
        Group group(r, names, staging_bytes);
        invitations[r] = group.invitation();
        all_there.arrive_and_wait();
        group.join(invitations);
        body(group, RankSchedule(schedule, r), all_there);
        all_there.arrive_and_wait();
      } catch (const std::exception& error) {
        fail(test.where() + ": " + error.what());
      }
    });
}

void run(const Case& test, size_t staging_bytes) {
  Stagings stagings(test.named.program.ranks, std::vector<std::byte>(staging_bytes));
  with_ranks(test, staging_bytes, [&](Group& group, const RankSchedule& rank_schedule, std::barrier<>&) {
    Rank(test, group.rank()).run(group, rank_schedule, stagings);
  });
}

// Of two ranks that work on each other's tensors, one is so late that the other gives up. This one may use its tensor
// for something else then, so what the late rank has read may be wrong.
void one_gives_up(const Case& test) {
  Stagings stagings(2, std::vector<std::byte>(4096));
  with_ranks(test, 4096, [&](Group& group, const RankSchedule& rank_schedule, std::barrier<>& gave_up) {
    const Rank rank(test, group.rank());
    const bool late = group.rank() == 1;
    FlagsCall call = rank.call(rank_schedule);
    if (!late) call.timeout = std::chrono::milliseconds(100);
    std::string raised;
    try {
      if (late) {
        VeryLate executor(stagings, [&] { gave_up.arrive_and_wait(); });
        run_flags(group, call, executor, [] { return true; });
      } else {
        run_flags(group, call);
      }
    } catch (const GroupError& error) {
      raised = error.what();
    }
    if (!late) gave_up.arrive_and_wait();
    gave_up.arrive_and_wait();  // the tensors are there until both have returned
    if (raised.find(late ? "rank 0 gave up" : "reached its timeout") == std::string::npos)
      fail("one gives up: rank " + group.name() + " raised '" + raised + "'");
  });
}

// Whether processes can run it: no part of the host, and no outputs that others write.
bool serves(const Named& named) {
  try {
    const std::shared_ptr<const Schedule> schedule(std::shared_ptr<void>(), &named.program);
    RankSchedule(schedule, 0);
    return !named.program.whole_tensors && named.program.ranks <= 4;
  } catch (const std::invalid_argument&) {
    return false;
  }
}

}  // namespace

int main(int, char** arguments) {
  int count = 0;
  const std::vector<Named> programs = engines_test::read_programs(arguments[1]);
  for (const Named& named : programs) {
    if (!serves(named)) continue;
    // 64 elements of each shard make a slice: the largest takes many, the last of them short.
    const size_t staging_bytes = (named.program.shards * 256 * 3 + 4095) / 4096 * 4096;
    const int64_t many = named.program.shards * staging_bytes / 4 / 3 * 4 + 5;
    for (const auto& elems : std::vector<std::vector<int64_t>>{{0}, {1}, {many}, {7, 0, many / 2, 130}})
      for (const Mode mode : {Mode::staged, Mode::devices}) {
        run({named, elems, mode}, staging_bytes);
        ++count;
      }
    run({named, {many}, Mode::unreached_devices}, staging_bytes);
    // Peers must not read what this rank writes its result to.
    run({named, {many}, Mode::reachable}, staging_bytes);
    count += 2;
    if (named.name == "sharded" && named.program.ranks == 2 && named.collective == "allreduce") {
      one_gives_up({named, {many}, Mode::reachable});
      ++count;
    }
  }
  std::printf("%d cases right\n", count);
}
