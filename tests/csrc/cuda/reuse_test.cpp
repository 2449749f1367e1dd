// Calls that differ in one thing, over tensors that come and go at the same addresses, as torch's
// allocator gives them: no call may be served by a graph of the other.
#include <array>
#include <list>

#include "cases.h"

namespace engines_test {
namespace {

// Its tensors are freed with it, so that the next call's have their addresses. `beside`: tensors of a second table.
class Call {
 public:
  Call(const Case& one, const Schedule& program, const Case* beside = nullptr)
      : program_(program), machine_(one.named.program.ranks, one.setting) {
    for (const Case* each : {&one, beside})
      if (each) contents_.push_back(each->content());
    for (const Content& content : contents_) buffers_.emplace_back(content, machine_.placement);
  }

  Call(Call&&) = delete;
  ~Call() {
    while (!buffers_.empty()) buffers_.pop_back();  // what is freed last is given out first
  }

  // Where the tensors of each table begin.
  std::vector<std::byte*> addresses() const {
    std::vector<std::byte*> found;
    for (const Table& table : tables()) found.push_back(table.pointers[0]);
    return found;
  }
  void run(const std::string& where) const {
    for (const Buffers& each : buffers_) each.fill();
    run_events(program_, tables(), machine_.placement);
    for (const Buffers& each : buffers_) each.collect();
    synchronize(machine_.devices);
    for (const Buffers& each : buffers_) each.expect_reduced(where);
    expect_clean(where);
  }

 private:
  std::vector<Table> tables() const {
    std::vector<Table> found;
    for (const Buffers& each : buffers_) found.push_back(each.tables()[0]);
    return found;
  }

  const Schedule& program_;
  Machine machine_;
  std::list<Content> contents_;
  std::list<Buffers> buffers_;
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

// So often in a row that each gets a graph and is replayed, and then in turn. Tells how often replays of either wait.
std::array<std::set<int64_t>, 2> in_turn(const Case& one, const Case& other, const std::string& difference,
                                         bool programs_each_turn = false) {
  std::set<std::vector<std::byte*>> addresses;
  std::array<std::set<int64_t>, 2> waits;
  Programs programs(programs_each_turn);
  const int64_t replays = virtual_cuda::graphs_launched();
  for (int turn = 0; turn < 4; ++turn) {
    const Case& now = turn % 2 == 0 ? one : other;
    const Call call(now, programs.of(now));
    addresses.insert(call.addresses());
    for (int times = 0; times < 3; ++times) {
      virtual_cuda::take_traffic();
      call.run(difference + ", turn " + std::to_string(turn + 1));
    }
    waits[turn % 2].insert(virtual_cuda::take_traffic().waits);
  }
  if (addresses.size() != 1) fail(difference + ": control: the tensors lie at different addresses");
  if (virtual_cuda::graphs_launched() < replays + 8) fail(difference + ": control: not replayed");
  ++cases;
  return waits;
}

// The second table is another, the first is the same.
void second_tables_in_turn(const Case& first, const Case& one, const Case& other, const std::string& difference) {
  const Schedule program = copy_of(first.named.program);
  std::set<std::vector<std::byte*>> addresses;
  for (int turn = 0; turn < 4; ++turn) {
    const Call call(first, program, turn % 2 == 0 ? &one : &other);
    addresses.insert(call.addresses());
    for (int times = 0; times < 3; ++times) call.run(difference + ", turn " + std::to_string(turn + 1));
  }
  if (addresses.size() != 1) fail(difference + ": control: the tensors lie at different addresses");
  ++cases;
}

// Two calls that differ in where one tensor lies: that of the buffer, in the table. It is one row.
void one_tensor_moved(int buffer, size_t table) {
  const Case one{program_of("leader", 4), kSum, {100}, {0, 0}, {.devices = 4, .slices = 1}};
  const Schedule program = copy_of(one.named.program);
  const Machine machine(4, one.setting);
  const Content content = one.content();
  const Buffers tensors[] = {{content, machine.placement}, {content, machine.placement}};
  const Buffers elsewhere(content, machine.placement);
  const std::string where = "tensor " + std::to_string(buffer) + " of table " + std::to_string(table) + " moved";
  for (int times = 0; times < 6; ++times) {
    for (const Buffers* each : {&tensors[0], &tensors[1], &elsewhere}) each->fill();
    std::vector<Table> tables{tensors[0].tables()[0], tensors[1].tables()[0]};
    const bool moved = times >= 3;
    if (moved) tables[table].pointers[buffer] = elsewhere.tables()[0].pointers[buffer];
    run_events(program, tables, machine.placement);
    for (const Buffers* each : {&tensors[0], &tensors[1], &elsewhere}) each->collect();
    synchronize(machine.devices);
    const Images before = content.before(), reduced = content.wanted(before);
    Images left = reduced, alone = before;
    left[buffer] = before[buffer], alone[buffer] = reduced[buffer];
    tensors[1 - table].expect(reduced, where);
    tensors[table].expect(moved ? left : reduced, where);
    elsewhere.expect(moved ? alone : before, where);
    expect_clean(where);
  }
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
  const Case by_device{program_of("ring", 4), kSum, {100}, {0, 0}, two};
  const Case by_rank = with(by_device, [](Case& x) { x.setting.lane_per_rank = true; });
  // Either leaves the same results: only the waits tell whose graph it was.
  const auto [few, more] = in_turn(by_device, by_rank, "a lane per rank");
  if (few.size() != 1 || more.size() != 1) fail("a lane per rank: a graph of other lanes was replayed");
  if (*few.begin() >= *more.begin()) fail("a lane per rank: no more waits than with a lane per device");
  const Case of_bytes = with(of_two, [](Case& x) { x.arithmetic = {DType::u8, Op::sum}; });
  second_tables_in_turn(of_two, of_bytes, with(of_bytes, [](Case& x) { x.lengths = {101}; }), "a longer second table");
  second_tables_in_turn(of_two, of_bytes, with(of_bytes, [](Case& x) { x.arithmetic.op = Op::bxor; }),
                        "another operation in the second table");
  for (size_t table : {0, 1})
    for (int buffer : {0, 1, 3}) one_tensor_moved(buffer, table);
}

}  // namespace engines_test
