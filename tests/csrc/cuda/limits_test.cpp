// What fits one launch: the last row, operand and instruction, and one more.
#include <numeric>

#include "cases.h"
#include "cuda/launch.h"
#include "cuda/peers.h"

namespace engines_test {
namespace {

// One GPU's call of so many rows. Each shard has the same instructions, of so many operands, and row r is of shard
// r modulo shards. Sources are the buffers in turn, more than once if need be.
struct Form {
  size_t rows, buffers, instructions, srcs, dsts;
  int shards = 1;
  size_t more_in_last_shard = 0;  // instructions; only the last row is of that shard then

  int shard_of(size_t row) const {
    if (more_in_last_shard == 0) return static_cast<int>(row) % shards;
    return row + 1 == rows ? shards - 1 : 0;
  }
  // Then the sources and the destinations are the same buffers in the same order.
  bool in_place() const { return srcs == dsts && buffers <= 2; }
  size_t operands() const { return instructions * (srcs + (in_place() ? 0 : dsts)); }
  std::string name() const {
    return std::to_string(rows) + " rows, " + std::to_string(buffers) + " buffers, " + std::to_string(instructions) +
           " instructions of " + std::to_string(srcs) + " sources, " + std::to_string(shards) + " shards";
  }
  // Neighbours of one shard share its instructions. Before the pointers, up to 8 bytes are left out.
  size_t bytes() const {
    const size_t lists = shards > 1 ? rows : 1;
    return rows * sizeof(RowArg) + lists * instructions * sizeof(InstructionArg) +
           (rows * operands() + 1) * sizeof(std::byte*);
  }
  bool fits() const { return bytes() <= sizeof(LaunchArgs::table); }
};

std::vector<int> buffers_in_turn(size_t first, size_t count, size_t buffers) {
  std::vector<int> some;
  for (size_t i = 0; i < count; ++i) some.push_back(static_cast<int>((first + i) % buffers));
  return some;
}

Schedule schedule_of(const Form& form) {
  std::vector<Instruction> instructions;
  std::vector<std::vector<int>> launches;
  for (int shard = 0; shard < form.shards; ++shard)
    for (size_t i = 0; i < form.instructions + (shard + 1 == form.shards ? form.more_in_last_shard : 0); ++i) {
      launches.push_back({static_cast<int>(instructions.size())});
      instructions.push_back({0, shard, buffers_in_turn(i + form.buffers - 1, form.srcs, form.buffers),
                              buffers_in_turn(i + 1, form.dsts, form.buffers), false});
    }
  const std::vector<std::vector<int>> waits(instructions.size());
  const int buffers = static_cast<int>(form.buffers);
  return Schedule(buffers, buffers, form.shards, std::move(instructions), waits, launches);
}

// Rows of bytes, which are summed modulo 256.
class Bytes {
 public:
  explicit Bytes(const Form& form) : form_(form), schedule_(schedule_of(form)) {
    for (size_t i = 0; i < form.rows * form.buffers * kApart; ++i) before_.push_back(static_cast<uint8_t>(mixed(i)));
    memory_ = allocate_device(0, size());
    cuda_check(cudaMemcpy(memory_.get(), before_.data(), size(), cudaMemcpyHostToDevice), "cudaMemcpy");
  }

  // Returns the number of launches.
  int64_t run() const {
    Table table{DType::u8, Op::sum, 1, {}, {}};
    for (size_t row = 0; row < form_.rows; ++row) {
      table.rows.push_back({form_.shard_of(row), kElems, table.pointers.size()});
      for (size_t buffer = 0; buffer < form_.buffers; ++buffer)
        table.pointers.push_back(static_cast<std::byte*>(memory_.get()) + at(row, buffer));
    }
    const int64_t before = virtual_cuda::work_queued();
    run_tiles_cuda(schedule_, {table}, 0, nullptr);
    return virtual_cuda::work_queued() - before;
  }

  std::vector<uint8_t> wanted() const {
    std::vector<uint8_t> bytes = before_;
    for (size_t row = 0; row < form_.rows; ++row)
      for (const Instruction* x : schedule_.by_shard[form_.shard_of(row)])
        for (size_t i = 0; i < kElems; ++i) {
          uint8_t sum = 0;
          for (int src : x->srcs) sum = static_cast<uint8_t>(sum + bytes[at(row, src) + i]);
          for (int dst : x->dsts) bytes[at(row, dst) + i] = sum;
        }
    return bytes;
  }
  const std::vector<uint8_t>& before() const { return before_; }

  void expect(const std::vector<uint8_t>& wanted) const {
    std::vector<uint8_t> found(size());
    cuda_check(cudaMemcpy(found.data(), memory_.get(), size(), cudaMemcpyDeviceToHost), "cudaMemcpy");
    if (found != wanted) fail(form_.name() + ": wrong bytes");
    expect_clean(form_.name());
    ++cases;
  }

 private:
  static constexpr int64_t kElems = 5, kApart = 16;
  size_t at(size_t row, size_t buffer) const { return (row * form_.buffers + buffer) * kApart; }
  size_t size() const { return before_.size(); }

  const Form form_;
  const Schedule schedule_;
  std::vector<uint8_t> before_;
  DeviceMemory memory_;
};

// The most of one of its numbers with which the form fits.
Form largest(Form form, size_t Form::* number) {
  for (form.*number = 1; form.fits(); ++(form.*number)) {
  }
  --(form.*number);
  return form;
}

template <class Run>
void expect_refusal(const std::string& where, const Run& run) {
  std::string thrown;
  try {
    run();
  } catch (const std::invalid_argument& error) {
    thrown = error.what();
  }
  if (thrown.find("do not fit one launch; use fewer ranks per call") == std::string::npos)
    fail(where + ": thrown: " + thrown);
}

// One of two GPUs has an instruction with more operands than a launch can name, after a copy that is right.
void expect_refused_on_two_gpus(const std::vector<int>& srcs, const std::vector<int>& dsts) {
  const Setting setting{.devices = 2};
  const Machine machine(2, setting);
  const Schedule schedule(2, 2, 1, {{0, 0, {0}, {1}, false}, {1, 0, srcs, dsts, false}}, {{}, {0}}, {{0}, {1}});
  const DeviceMemory memory[] = {allocate_device(0, 64), allocate_device(1, 64)};
  Table table{DType::u8, Op::sum, 1, {{0, 64, 0}}, {}};
  for (const DeviceMemory& each : memory) table.pointers.push_back(static_cast<std::byte*>(each.get()));
  prove_peers({0, 1}, machine.placement.current);
  const int64_t before = virtual_cuda::work_queued();
  expect_refusal("two GPUs", [&] { run_events(schedule, {table}, machine.placement); });
  if (virtual_cuda::work_queued() != before) fail("two GPUs: launched all the same");
  synchronize(2);
  ++cases;
}

void expect_launches(const Form& form, int64_t wanted) {
  const Bytes bytes(form);
  const int64_t launches = bytes.run();
  if (launches != wanted)
    fail(form.name() + ": " + std::to_string(launches) + " launches, not " + std::to_string(wanted));
  bytes.expect(bytes.wanted());
}

// Nothing was launched before the error.
void expect_refused(const Form& form) {
  const Bytes bytes(form);
  const int64_t before = virtual_cuda::work_queued();
  expect_refusal(form.name(), [&] { bytes.run(); });
  if (virtual_cuda::work_queued() != before) fail(form.name() + ": launched all the same");
  bytes.expect(bytes.before());
}

// More than a byte can count.
void an_average_over_300_ranks() {
  constexpr int kRanks = 300;
  std::vector<int> all(kRanks);
  std::iota(all.begin(), all.end(), 0);
  const std::vector<int> others(all.begin() + 1, all.end());
  const Schedule schedule(kRanks, kRanks, 1, {{0, 0, all, {0}, true}, {0, 0, {0}, others, false}}, {{}, {0}},
                          {{0}, {1}});
  std::vector<float> values(all.begin(), all.end());
  const DeviceMemory memory = allocate_device(0, kRanks * sizeof(float));
  Table table{DType::f32, Op::avg, sizeof(float), {{0, 1, 0}}, {}};
  for (int rank : all) table.pointers.push_back(static_cast<std::byte*>(memory.get()) + rank * sizeof(float));
  cuda_check(cudaMemcpy(memory.get(), values.data(), kRanks * sizeof(float), cudaMemcpyHostToDevice), "cudaMemcpy");
  run_tiles_cuda(schedule, {table}, 0, nullptr);
  cuda_check(cudaMemcpy(values.data(), memory.get(), kRanks * sizeof(float), cudaMemcpyDeviceToHost), "cudaMemcpy");
  if (values != std::vector<float>(kRanks, (kRanks - 1) / 2.0f)) fail("an average over 300 ranks");
  expect_clean("an average over 300 ranks");
  ++cases;
}

Form with_more(Form form, size_t Form::* number, size_t more) {
  form.*number += more;
  return form;
}

}  // namespace

void limits_of_a_launch() {
  if (kMaxArgsBytes > 5000) an_average_over_300_ranks();
  // Rows go to as many launches as they need.
  for (const Form& each : {Form{1, 2, 1, 2, 2}, Form{1, 3, 2, 2, 1}, Form{1, 8, 1, 8, 8}, Form{1, 2, 1, 2, 1, 2}}) {
    const Form most = largest(each, &Form::rows);
    expect_launches(with_more(most, &Form::rows, -1), 1);
    expect_launches(most, 1);
    expect_launches(with_more(most, &Form::rows, 1), 2);
    expect_launches(with_more(most, &Form::rows, most.rows), 2);
    expect_launches(with_more(most, &Form::rows, most.rows + 1), 3);
  }
  // Whole launches of rows of the first shard come before the one that does not fit.
  const Form one{1, 2, 1, 2, 1};
  expect_refused(
      {2 * largest(one, &Form::rows).rows + 1, 2, 1, 2, 1, 2, largest(one, &Form::instructions).instructions});
  const Form two{1, 2, 1, 1, 1};
  expect_refused_on_two_gpus(buffers_in_turn(0, largest(two, &Form::srcs).srcs + 1, 2), {1});
  // What one row needs must fit one launch: its operands, however many buffers there are.
  expect_launches({1, 5000, 1, 2, 1}, 1);
  const std::pair<Form, size_t Form::*> numbers[] = {{{1, 4, 1, 1, 2}, &Form::srcs},
                                                     {{1, 5, 3, 1, 1}, &Form::srcs},
                                                     {{1, 4, 1, 1, 1}, &Form::instructions},
                                                     {{1, 3, 1, 2, 2}, &Form::instructions}};
  for (const auto& [form, number] : numbers) {
    const Form most = largest(form, number);
    expect_launches(most, 1);
    expect_refused(with_more(most, number, 1));
    // A second row, for whose pointers there is no room.
    expect_launches(with_more(most, &Form::rows, 1), 2);
  }
}

// What fits in place does not fit where its results pass through scratch memory.
void limits_without_peers() {
  const size_t in_place = largest({1, 2, 1, 1, 1}, &Form::srcs).srcs + 1;
  const std::vector<int> buffers = buffers_in_turn(0, in_place, 2);
  expect_refused_on_two_gpus(buffers, buffers);
}

}  // namespace engines_test
