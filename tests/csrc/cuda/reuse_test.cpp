// Calls that differ in one thing, over tensors that come and go at the same addresses, as torch's
// allocator gives them: no call may be served by a graph of the other.
#include "cases.h"

namespace engines_test {
namespace {

// Its tensors are freed with it, so that the next call's have their addresses.
class Call {
 public:
  Call(const Case& one, const Schedule& program)
      : program_(program),
        machine_(one.named.program.ranks, one.setting),
        content_(one.content()),
        buffers_(content_, machine_.placement) {}

  std::byte* address() const { return buffers_.tables()[0].pointers[0]; }
  void run(const std::string& where) const {
    buffers_.fill();
    run_events(program_, buffers_.tables(), machine_.placement);
    buffers_.collect();
    synchronize(machine_.devices);
    buffers_.expect_reduced(where);
    expect_clean(where);
  }

 private:
  const Schedule& program_;
  Machine machine_;
  Content content_;
  Buffers buffers_;
};

// Calls that reduce the same way have the same program, unless each turn has one of its own.
class Programs {
 public:
  explicit Programs(bool each_turn) : each_turn_(each_turn) {}
  const Schedule& of(const Case& one) {
    if (each_turn_) kept_.clear();
    auto& program = kept_[&one.named];
    if (!program) program = std::make_unique<Schedule>(copy_of(one.named.program));
    return *program;
  }

 private:
  bool each_turn_;
  std::map<const Named*, std::unique_ptr<Schedule>> kept_;
};

// So often in a row that each gets a graph and is replayed, and then in turn.
void in_turn(const Case& one, const Case& other, const std::string& difference, bool programs_each_turn = false) {
  std::set<std::byte*> addresses;
  Programs programs(programs_each_turn);
  const int64_t replays = virtual_cuda::graphs_launched();
  for (int turn = 0; turn < 4; ++turn) {
    const Case& now = turn % 2 == 0 ? one : other;
    const Call call(now, programs.of(now));
    addresses.insert(call.address());
    for (int times = 0; times < 3; ++times) call.run(difference + ", turn " + std::to_string(turn + 1));
  }
  if (addresses.size() != 1) fail(difference + ": control: the tensors lie at different addresses");
  if (virtual_cuda::graphs_launched() < replays + 8) fail(difference + ": control: not replayed");
  ++cases;
}

}  // namespace

void calls_at_the_same_addresses() {
  const Setting two{.devices = 2, .slices = 1}, four{.devices = 4, .slices = 1};
  const Case of_four{program_of("sharded", 4), kSum, {100}, {0, 0}, four};
  // One shard: a row begins where its tensor begins, whatever the length and the dtype.
  const Case of_two{program_of("leader", 2), kSum, {100}, {0, 0}, two};
  const auto with = [](Case one, const auto& change) {
    change(one);
    return one;
  };
  in_turn(of_four, {program_of("ring", 4), kSum, {100}, {0, 0}, four}, "another program");
  const Case to_one{program_of("reduce", 2), kSum, {100}, {0, 0}, two};
  const Case to_all{program_of("broadcast", 2), kSum, {100}, {0, 0}, two};
  in_turn(to_one, to_all, "another collective");
  in_turn(to_one, to_all, "a program where the last one was", true);
  in_turn(of_two, with(of_two, [](Case& x) { x.arithmetic.op = Op::avg; }), "another operation");
  in_turn(with(of_two, [](Case& x) { x.arithmetic = {DType::u8, Op::sum}; }),
          with(of_two, [](Case& x) { x.arithmetic = {DType::u8, Op::bxor}; }), "another operation of bytes");
  in_turn(of_two, with(of_two, [](Case& x) { x.arithmetic.dtype = DType::bf16; }), "another dtype");
  in_turn(of_two, with(of_two, [](Case& x) { x.lengths = {101}; }), "one element more");
  in_turn(of_two, with(of_two, [](Case& x) { x.lengths = {40}; }), "fewer elements");
  in_turn(of_two, with(of_two, [](Case& x) { x.lengths = {100, 3}; }), "a tensor more");
  in_turn(with(of_two, [](Case& x) { x.lengths = {16, 40}; }), with(of_two, [](Case& x) { x.lengths = {16, 41}; }),
          "the second tensor longer");
  in_turn(of_two, with(of_two, [](Case& x) { x.setting.slices = 2; }), "more slices");
  in_turn(of_two, with(of_two, [](Case& x) { x.setting.copy_engine_bytes = 4; }), "copies by the copy engine");
  in_turn(of_four, with(of_four, [](Case& x) { x.setting.lane_per_rank = true; }), "a lane per rank");
}

}  // namespace engines_test
