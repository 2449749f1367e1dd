// Calls by flags: launches of several lanes that wait for each other. Every block is a thread, so ThreadSanitizer sees
// whether they wait for enough.
#include "cases.h"
#include "cuda/launch.h"
#include "cuda/peers.h"

namespace engines_test {
namespace {

const Setting kTwo{.devices = 2, .by_flags = true};
// Of 6 multiprocessors, for 3 blocks each: a row in as many tiles of 1 KiB is the largest.
constexpr int64_t kMostElems = 6 * 3 * 256;

class Call {
 public:
  Call(const Named& named, Arithmetic arithmetic, std::vector<int64_t> lengths, Shift shift, const Setting& setting)
      : one_{named, arithmetic, std::move(lengths), shift, setting},
        machine_(named.program.ranks, setting),
        content_(one_.content()),
        buffers_(content_, machine_.placement) {
    prove_peers(machine_.placement.device_of_rank, machine_.placement.current);  // by kernels of its own
  }

  const Buffers& buffers() const { return buffers_; }
  std::vector<cudaStream_t>& streams() { return machine_.placement.current; }
  void enqueue() const { run_events(one_.named.program, buffers_.tables(), machine_.placement); }

  // One call with the tensors of both. The other's streams are not this one's, so the host waits.
  void enqueue_with(const Call& other) const {
    synchronize(machine_.devices);
    run_events(one_.named.program, {buffers_.tables()[0], other.buffers_.tables()[0]}, machine_.placement);
    synchronize(machine_.devices);
  }

  // Whether it was served by flags: so many launches per lane, and no waits but round lanes of one device.
  bool is_by_flags(int launches) const {
    virtual_cuda::take_traffic();
    enqueue();
    const virtual_cuda::Traffic traffic = virtual_cuda::take_traffic();
    const bool lane_per_rank = one_.setting.lane_per_rank;
    const int lanes = lane_per_rank ? ranks() : machine_.devices;
    return traffic.kernels == launches * lanes && (lane_per_rank || traffic.waits == 0);
  }

  // Three calls one after the other, with nobody waiting in between.
  void expect_right(bool by_flags = true, int launches = 1) const {
    for (int times = 0; times < 3; ++times) {
      buffers_.fill();
      if (is_by_flags(launches) != by_flags) fail(one_.name() + (by_flags ? ": not by flags" : ": by flags"));
      buffers_.collect();
    }
    expect_reduced(one_.name());
  }
  void expect_reduced(const std::string& where) const {
    synchronize(machine_.devices);
    buffers_.expect_reduced(where);
    expect_clean(where);
    ++cases;
  }

 private:
  int ranks() const { return one_.named.program.ranks; }

  const Case one_;
  Machine machine_;
  const Content content_;
  const Buffers buffers_;
};

bool on_gpus_alone(const Schedule& program) {
  return std::all_of(program.instructions.begin(), program.instructions.end(),
                     [](const Instruction& x) { return x.rank != kHost; });
}

void every_program() {
  for_each_program({2, 3, 4}, [](const Named& named) {
    const int ranks = named.program.ranks;
    const bool possible = on_gpus_alone(named.program);
    const Arithmetic arithmetic = kArithmetics[cases % std::size(kArithmetics)];
    Call(named, arithmetic, {257, 3}, {1, 0}, {.devices = ranks, .by_flags = true}).expect_right(possible);
    if (!possible) return;
    if (ranks == 4) Call(named, kSum, {90}, {0, 0}, {.devices = 2, .in_blocks = true, .by_flags = true}).expect_right();
    if (ranks == 3)
      Call(named, kSum, {300}, {2, 3}, {.devices = 1, .lane_per_rank = true, .by_flags = true}).expect_right();
  });
}

void as_many_blocks_as_run_at_once() {
  const Named& leader = program_of("leader", 2);
  Call(leader, kSum, {kMostElems}, {0, 0}, kTwo).expect_right();
  Call(leader, kSum, {kMostElems + 1}, {0, 0}, kTwo).expect_right(false);
  const Setting on_one{.devices = 1, .lane_per_rank = true, .by_flags = true};
  Call(leader, kSum, {kMostElems / 2}, {0, 0}, on_one).expect_right();
  Call(leader, kSum, {kMostElems / 2 + 1}, {0, 0}, on_one).expect_right(false);
}

// Each dtype has its launches, one behind the other by the same signals.
void two_dtypes() {
  const Call floats(program_of("ring", 2), kSum, {500}, {0, 0}, kTwo);
  const Call halves(program_of("ring", 2), {DType::bf16, Op::sum}, {333}, {1, 0}, kTwo);
  for (int times = 0; times < 3; ++times) {
    for (const Call* call : {&floats, &halves}) call->buffers().fill();
    floats.enqueue_with(halves);
    for (const Call* call : {&floats, &halves}) call->buffers().collect();
  }
  floats.expect_reduced("two dtypes, float32");
  halves.expect_reduced("two dtypes, bfloat16");
}

// Nothing orders the two but the launches themselves.
void on_other_streams() {
  Call one(program_of("sharded", 2), kSum, {500}, {0, 0}, kTwo),
      other(program_of("ring", 2), kSum, {500}, {0, 0}, kTwo);
  for (int times = 0; times < 3; ++times)
    for (const Call* call : {&one, &other}) {
      call->buffers().fill();
      call->enqueue();
      call->buffers().collect();
    }
  one.expect_reduced("beside a call on other streams");
  other.expect_reduced("beside a call on other streams");
}

// The second stream joins the capture, or the call is served by events, for which launches wait as nodes of the graph.
void in_a_capture(bool joins) {
  Call call(program_of("ring", 2), kSum, {500}, {0, 0}, kTwo);
  std::vector<Stream> streams;
  for (int device = 0; device < 2; ++device) {
    const DeviceGuard guard(device);
    call.streams()[device] = streams.emplace_back(make_stream()).get();
  }
  const std::string where = joins ? "captured on both devices" : "captured on one device";
  std::vector<Event> events;
  const auto follow = [&](int later, int earlier) {
    const DeviceGuard guard(earlier);
    const Event& event = events.emplace_back(make_event());
    cuda_check(cudaEventRecord(event.get(), streams[earlier].get()), "cudaEventRecord");
    cuda_check(cudaStreamWaitEvent(streams[later].get(), event.get(), 0), "cudaStreamWaitEvent");
  };
  const Captured graph(streams[0].get(), cudaStreamCaptureModeGlobal, [&] {
    if (joins) follow(1, 0);
    call.enqueue();
    if (joins) follow(0, 1);
  });
  for (int times = 0; times < 3; ++times) {
    call.buffers().fill();
    synchronize(2);
    virtual_cuda::take_traffic();
    graph.launch(streams[0].get());
    const int64_t waits = virtual_cuda::take_traffic().waits;
    if (joins != (waits == 0)) fail(where + ": " + std::to_string(waits) + " waits");
    synchronize(2);
  }
  call.buffers().collect();
  call.expect_reduced(where);
}

// Two GPUs copy each shard to each other in turn, so often. Each copy waits for the one before.
struct BackAndForth {
  int shards, times;

  Named named() const {
    std::vector<Instruction> instructions;
    std::vector<std::vector<int>> waits, launches;
    for (int shard = 0; shard < shards; ++shard)
      for (int time = 0; time < times; ++time) {
        const int index = static_cast<int>(instructions.size());
        waits.push_back(time == 0 ? std::vector<int>() : std::vector<int>{index - 1});
        launches.push_back({index});
        instructions.push_back({time % 2, shard, {time % 2}, {1 - time % 2}, false});
      }
    const std::vector<std::vector<int>> goals(2 * shards, {0});
    return {"back and forth", "broadcast", Schedule(2, 2, shards, instructions, waits, launches), false,
            {false, false},   goals};
  }
  // Of the table of a launch. Rows of different shards next to each other have their own lists. Behind their pointers
  // are those of the signals; before them, up to 8 bytes are left out.
  size_t bytes(size_t rows) const {
    const size_t lists = times * (sizeof(InstructionArg) + sizeof(StepArg)) + (times - 1) * sizeof(WaitArg);
    return rows * (sizeof(RowArg) + lists) + (rows * 2 * times + 3 + 1) * sizeof(std::byte*);
  }
  bool fits(size_t rows) const { return bytes(rows) <= sizeof(LaunchArgs::table); }
  void expect_right(size_t tensors, bool by_flags, int launches) const {
    const Named program = named();
    Call(program, kSum, std::vector<int64_t>(tensors, 8), {0, 0}, kTwo).expect_right(by_flags, launches);
  }
};

void as_many_waits_as_fit() {
  BackAndForth most{1, 1};
  while (BackAndForth{1, most.times + 1}.fits(1)) ++most.times;
  most.expect_right(1, true, 1);
  BackAndForth{1, most.times + 1}.expect_right(1, false, 1);
  BackAndForth{2, 300}.expect_right(1, true, 1);  // more waits, behind each other, than a byte can count
  // Rows of two tensors: as few copies as three rows do not fit, and two do.
  BackAndForth some{2, 1};
  while (some.fits(3)) ++some.times;
  some.expect_right(2, true, 2);
}

}  // namespace

void calls_by_flags() {
  every_program();
  as_many_blocks_as_run_at_once();
  as_many_waits_as_fit();
  two_dtypes();
  on_other_streams();
  in_a_capture(true);
  in_a_capture(false);
}

}  // namespace engines_test
