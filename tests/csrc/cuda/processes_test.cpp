// The engine for processes on virtual GPUs, with threads as ranks. Small calls are one launch per rank, whose blocks
// wait for those of the other ranks; every block is a thread, so ThreadSanitizer sees whether they wait for enough.
#include <atomic>
#include <barrier>
#include <mutex>
#include <thread>

#include "cuda/ipc.h"
#include "machine.h"
#include "processes/group.h"

namespace fastreduce {
bool wait_on_shared_gpus = false;
}

namespace {

using namespace engines_test;
using std::chrono::milliseconds;

constexpr int kRounds = 3;
constexpr int64_t kAtOnceElems = kAtOnceBytes / 4;

int cases = 0;
std::mutex mutex;  // of lane_of_memory
thread_local cudaStream_t current_stream;

// Without destructors, which would wait for kernels that wait for each other.
[[noreturn]] void fail_at_once(const std::string& what) {
  std::fprintf(stderr, "FAILED: %s\n", what.c_str());
  std::_Exit(1);
}

float value(int rank, int64_t elem, int round) {
  return static_cast<float>(((elem + round) % 7 + 1) << (3 * rank));  // a sum tells whose they are
}

struct Case {
  const Named& named;
  std::vector<int64_t> elems;  // of each tensor
  bool at_once = true;         // how it must be served
  int shifted_rank = -1;       // whose tensors begin where no vector does
  bool on_one_gpu = false;

  int ranks() const { return named.program.ranks; }
  std::string where() const {
    return named.where() + ", " + std::to_string(elems.size()) + " tensors, the first of " + std::to_string(elems[0]) +
           (on_one_gpu ? ", on one GPU" : "");
  }
};

// What one process has: a group, and on its GPU a stream, staging memory and tensors, one behind the other.
class Process {
 public:
  Process(const Case& test, int rank, const std::vector<std::string>& names)
      : test_(test),
        program_(test.named.program),
        device_(test.on_one_gpu ? 0 : rank),
        group_(rank, names, 1 << 16),
        staging_(device_, rank, test.ranks(), [](int) { return current_stream; }) {
    const DeviceGuard guard(device_);
    current_stream = (stream_ = make_stream()).get();
    for (int64_t elems : test.elems) total_ += elems;
    const int64_t bytes = total_ * 4 + 64;
    in_ = allocate_device(device_, bytes);
    out_ = allocate_device(device_, bytes);
    const std::lock_guard lock(mutex);
    for (void* memory : {in_.get(), out_.get(), staging_memory()})
      lane_of_memory[static_cast<std::byte*>(memory)] = rank;
  }

  Group& group() { return group_; }
  Announcement announcement() const {
    Announcement mine;
    mine.describe(test_.where());
    mine.device = staging_.address();
    return mine;
  }

  // As DeviceGroup does.
  bool join() {
    std::vector<DeviceAddress> announced;
    for (int rank = 0; rank < group_.size(); ++rank) announced.push_back(group_.announced(rank).device);
    if (announced == known_) return true;
    known_ = announced;
    return group_.all(staging_.open(announced));
  }

  void call(const RankPlan& plan, milliseconds timeout) {
    const FlagsCall call{plan, DType::f32, Op::sum, 4, items(), announcement(), timeout};
    const auto executor = staging_.executor(call);
    try {
      if (!run_flags(group_, call, *executor, [this] { return join(); })) fail_at_once(test_.where() + ": not reached");
    } catch (const GroupError&) {
      staging_.abandon();
      const Clock::time_point end = Clock::now() + std::chrono::seconds(5);
      while (!executor->idle())
        if (Clock::now() > end) fail_at_once(test_.where() + ": a kernel waits on after its call has failed");
      throw;
    }
  }

  void fill(int round) {
    std::vector<float> values(total_);
    for (int64_t e = 0; e < total_; ++e) values[e] = value(group_.rank(), e, round);
    const DeviceGuard guard(device_);
    cuda_check(cudaMemcpy(at(in_, 0), values.data(), total_ * 4, cudaMemcpyHostToDevice), "cudaMemcpy");
    cuda_check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  }

  void check(int round) {
    const int rank = group_.rank();
    const int buffer = in_place() ? rank : test_.ranks() + rank;
    std::vector<float> found(total_);
    const DeviceGuard guard(device_);
    cuda_check(cudaMemcpy(found.data(), at(in_place() ? in_ : out_, 0), total_ * 4, cudaMemcpyDeviceToHost),
               "cudaMemcpy");
    each_shard([&](int64_t first, int shard, int64_t begin, int64_t length) {
      const std::vector<int>& goal = test_.named.goal(buffer, shard);
      for (int64_t e = first + begin; e < first + begin + length && !goal.empty(); ++e) {
        float wanted = 0;
        for (int from : goal) wanted += value(from, e, round);
        if (found[e] != wanted)
          fail_at_once(test_.where() + ": wrong value " + std::to_string(found[e]) + " on rank " +
                       std::to_string(rank) + ", element " + std::to_string(e) + ", round " + std::to_string(round));
      }
    });
  }

 private:
  bool in_place() const { return program_.buffers == program_.ranks; }
  void* staging_memory() const {
    void* memory;
    std::memcpy(&memory, staging_.address().staging.data(), sizeof(memory));
    return memory;
  }
  std::byte* at(const DeviceMemory& memory, int64_t elem) const {
    const int64_t shift = group_.rank() == test_.shifted_rank ? 4 : 0;
    return static_cast<std::byte*>(memory.get()) + shift + elem * 4;
  }

  // Calls visit(the tensor's first element, shard, where it begins in the tensor, its length).
  template <class Visit>
  void each_shard(const Visit& visit) const {
    int64_t first = 0;
    for (int64_t elems : test_.elems) {
      const int64_t part = part_elems(elems, program_.shards, 4);
      for (int shard = 0; shard < program_.shards; ++shard) {
        const int64_t begin = std::min(shard * part, elems);
        visit(first, shard, begin, std::min(part, elems - begin));
      }
      first += elems;
    }
  }

  std::vector<Item> items() const {
    std::vector<Item> items;
    for (int64_t elems : test_.elems) items.push_back({part_elems(elems, program_.shards, 4), {}, {}});
    size_t spans = 0;
    each_shard([&](int64_t first, int, int64_t begin, int64_t length) {
      Item& item = items[spans++ / program_.shards];
      item.in.push_back({at(in_, first + begin), length, 0});
      item.out.push_back({at(in_place() ? in_ : out_, first + begin), length, 0});
    });
    return items;
  }

  const Case& test_;
  const Schedule& program_;
  const int device_;
  Group group_;
  Stream stream_;
  IpcStaging staging_;
  int64_t total_ = 0;
  DeviceMemory in_, out_;
  std::vector<DeviceAddress> known_;
};

// Each rank, in a thread of its own, once all have joined: does(process, its part of the program, the barrier of all).
template <class Does>
void as_processes(const Case& test, const Does& does) {
  const int k = test.ranks();
  const std::shared_ptr<const Schedule> schedule(std::shared_ptr<void>(), &test.named.program);
  std::vector<std::string> names(k), invitations(k);
  for (int r = 0; r < k; ++r) names[r] = std::to_string(r);
  std::barrier all(k);
  std::vector<std::jthread> ranks;
  for (int r = 0; r < k; ++r)
    ranks.emplace_back([&, r] {
      try {
        Process process(test, r, names);
        invitations[r] = process.group().invitation();
        all.arrive_and_wait();
        process.group().join(invitations);
        does(process, RankPlan(schedule, r), all);
        all.arrive_and_wait();
      } catch (const std::exception& error) {
        fail_at_once(test.where() + ": " + error.what());
      }
    });
}

void run(const Case& test) {
  as_processes(test, [&](Process& process, const RankPlan& plan, auto& all) {
    for (int round = 0; round < kRounds; ++round) {
      process.fill(round);
      all.arrive_and_wait();
      if (process.group().rank() == 0) virtual_cuda::take_traffic();
      all.arrive_and_wait();
      process.call(plan, milliseconds(20'000));
      all.arrive_and_wait();
      const bool at_once = process.group().rank() > 0 || virtual_cuda::take_traffic().kernels == test.ranks();
      // In the first round nobody knows before the ranks have met, and the first slice is copied in.
      if (process.group().rank() == 0 && round > 0 && at_once != test.at_once)
        fail_at_once(test.where() + (at_once ? ": done at once" : ": not done at once"));
      process.check(round);
    }
  });
  expect_clean(test.where());
  ++cases;
}

// Rank 1 meets the others, and then leaves or does nothing: kernels that wait for it end, and errors say whom they
// waited for.
void one_stops(const Case& test, bool leaves, const std::string& words) {
  as_processes(test, [&](Process& process, const RankPlan& plan, auto& all) {
    process.fill(0);
    process.call(plan, milliseconds(20'000));  // who has not met the others does nothing at once
    all.arrive_and_wait();
    if (process.group().rank() != 1) {
      try {
        process.call(plan, leaves ? milliseconds(5'000) : milliseconds(500));
        fail_at_once(test.where() + ": a call without rank 1 ended");
      } catch (const GroupError& error) {
        if (std::string(error.what()).find(words) == std::string::npos)
          fail_at_once(test.where() + ": found '" + error.what() + "', wanted " + words);
      }
    } else {
      Announcement mine = process.announcement();
      mine.at_once = true;
      process.group().agree(mine, milliseconds(20'000));
      if (leaves) process.group().leave();
    }
    all.arrive_and_wait();
  });
  expect_clean(test.where());
  ++cases;
}

const Named& find(const std::vector<Named>& programs, const std::string& name, int ranks) {
  for (const Named& named : programs)
    if (named.name == name && named.program.ranks == ranks) return named;
  fail("no program " + name);
}

// Whether processes can run it: no part of the host, and no outputs that others write.
bool serves(const Named& named) {
  try {
    const std::shared_ptr<const Schedule> schedule(std::shared_ptr<void>(), &named.program);
    RankPlan(schedule, 0);
    return !named.program.whole_tensors && named.program.ranks > 1 && named.program.ranks <= 4;
  } catch (const std::invalid_argument&) {
    return false;
  }
}

}  // namespace

int main(int count, char** arguments) {
  virtual_cuda::reset({.devices = 4, .max_delay_us = 20, .multiprocessors = 90, .blocks_wait = true});
  const std::vector<Named> programs = read_programs(arguments[1]);
  for (const Named& named : programs) {
    if (!serves(named) || (count > 2 && named.program.ranks != std::atoi(arguments[2]))) continue;
    run({named, {130}});
    run({named, {1, 300, 7}, true, named.program.ranks - 1});
  }
  const Named& sharded = find(programs, "sharded", 2);
  run({sharded, {kAtOnceElems}});
  run({sharded, {kAtOnceElems + 64}, false});
  run({sharded, std::vector<int64_t>(kMaxSignalTiles + 1, 3), false});  // a tile each
  run({sharded, {130}, false, -1, true});
  wait_on_shared_gpus = true;  // here it is one process, of which one call at a time may have kernels that wait
  run({sharded, {130}, false, -1, true});
  wait_on_shared_gpus = false;
  const Named& ring = find(programs, "ring", 3);
  run({ring, {130}});  // with a GPU that was in fewer calls than the others
  one_stops({ring, {130}}, true, "rank 1 has left the group");
  one_stops({ring, {130}}, false, "reached its timeout of 500 ms, waiting for the devices of all ranks");
  std::printf("%d cases right\n", cases);
}
