// matrix_test PROGRAMS EVERY: of all (program, ranks, dtype, operation) every EVERY-th, on each engine,
// so that all pairs with what else a call may be meet. Prints "N cases right".
#include "choices.h"
#include "cpu/tiles.h"
#include "machine.h"

using namespace engines_test;

namespace {

const std::vector<std::vector<int64_t>> kLengths = {
    {0}, {1}, {2, 0, 7}, {63, 64, 65}, {257, 3, 64}, {4099}, {1030, 1, 9}, {17000}, std::vector<int64_t>(260, 2),
};

// Vectors of 16 bytes from the first element, or behind a few single ones; of 8; of 4; none.
constexpr Shift kShifts[] = {{0, 0}, {1, 0}, {7, 16}, {0, 8}, {3, 8}, {0, 4}, {1, 12}, {0, 1}, {5, 3}};

struct Case {
  const Named& named;
  Arithmetic arithmetic;
  Data data;
  std::vector<int64_t> lengths;
  Shift shift;
  Setting setting;
  std::string name() const {
    return named.where() + ", " + arithmetic.name() + ", " + kDataNames[static_cast<int>(data)] + " data, " +
           std::to_string(lengths.size()) + " tensors, the first of " + std::to_string(lengths[0]) + ", shifted by " +
           std::to_string(shift.elems) + " elements and " + std::to_string(shift.bytes_per_rank) + " bytes per rank, " +
           setting.name();
  }
};

// In pieces, the last first: nothing may depend on who comes when.
void backwards(int64_t tasks, const std::function<void(int64_t, int64_t)>& body) {
  for (int64_t end = tasks; end > 0; end -= std::min<int64_t>(end, 3)) body(std::max<int64_t>(0, end - 3), end);
}

Images on_cpu(const Case& one, const Content& content) {
  Images images = content.before();
  std::vector<std::byte*> memory;
  for (auto& image : images) memory.push_back(image.data());
  run_tiles(one.named.program, content.table(memory), backwards);
  return images;
}

void run_on_one_gpu(const Case& one, const Content& content, const Images& wanted) {
  const Machine machine(content.ranks(), {.devices = 1});
  const Buffers buffers(content, machine.placement);
  buffers.fill();
  run_tiles_cuda(one.named.program, buffers.tables(), 0, machine.placement.current[0]);
  buffers.collect();
  synchronize(1);
  buffers.expect(wanted, "tiles on one GPU, " + one.name());
  expect_clean(one.name());
}

// The first call is enqueued, unless the same was called before with other tensors; the second is launched as a graph.
void run_on_several_gpus(const Case& one, const Content& content, const Images& wanted) {
  const Machine machine(content.ranks(), one.setting);
  const Buffers buffers(content, machine.placement);
  const int64_t replays = virtual_cuda::graphs_launched();
  for (int times = 1; times <= 2; ++times) {
    buffers.fill();
    run_events(one.named.program, buffers.tables(), machine.placement);
    buffers.collect();
  }
  synchronize(machine.devices);
  buffers.expect(wanted, "events, " + one.name());
  if (virtual_cuda::graphs_launched() == replays) fail("events, " + one.name() + ": not replayed");
  expect_clean(one.name());
}

void run(const Case& one) {
  const Content content(one.named, one.arithmetic, one.data, one.lengths, one.shift);
  const Images by_tiles = on_cpu(one, content);
  if (one.data == Data::exact || one.named.in_rank_order)
    content.expect_same(by_tiles, content.wanted(content.before()), "tiles on the CPU, " + one.name());
  run_on_one_gpu(one, content, by_tiles);
  run_on_several_gpus(one, content, by_tiles);
}

// Bytes last: where there are kernels of one dtype only, that one comes first.
std::vector<Arithmetic> every_arithmetic() {
  std::vector<Arithmetic> all;
  for (int dtype = kDTypes - 1; dtype >= 0; --dtype)
    for (int op = 0; op < kOps; ++op) {
      const Arithmetic one{static_cast<DType>(dtype), static_cast<Op>(op)};
      if (cpu_kernels().select(one.dtype, one.op)) all.push_back(one);
    }
  return all;
}

// By name and number of ranks. More ranks than are unrolled take the general loop.
constexpr int kMaxRanks = 9;
constexpr int kMaxDevices = 8;

std::map<std::string, std::vector<const Named*>> by_name(const std::vector<Named>& programs) {
  std::map<std::string, std::vector<const Named*>> found;
  for (const Named& named : programs)
    if (named.program.ranks <= kMaxRanks) found[named.name].push_back(&named);
  return found;
}

int run_matrix(const std::vector<Named>& programs, int every) {
  const std::vector<Arithmetic> arithmetics = every_arithmetic();
  const auto names = by_name(programs);
  Choices choices({{"program", static_cast<int>(names.size())},
                   {"ranks", kMaxRanks},
                   {"arithmetic", static_cast<int>(arithmetics.size())},
                   {"data", static_cast<int>(std::size(kDataNames))},
                   {"lengths", static_cast<int>(kLengths.size())},
                   {"shift", static_cast<int>(std::size(kShifts))},
                   {"devices", kMaxDevices},
                   {"in blocks", 2},
                   {"a lane per rank", 2},
                   {"slices", 3}});
  int cases = 0;
  for (int a = 0; a < static_cast<int>(arithmetics.size()); ++a) {
    int name = 0, number = a;
    for (const auto& [_, of_name] : names) {
      for (int r = 0; r < static_cast<int>(of_name.size()); ++r) {
        if (number++ % every != 0) continue;
        const std::vector<int> c = choices.next({name, r, a});
        const Setting setting{1 + c[6] % std::min(r + 1, kMaxDevices), c[7] == 1, c[8] == 1, 1 + c[9]};
        run({*of_name[r], arithmetics[a], static_cast<Data>(c[3]), kLengths[c[4]], kShifts[c[5]], setting});
        ++cases;
      }
      ++name;
    }
  }
  choices.expect_all_pairs_met();
  return cases;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) fail("matrix_test PROGRAMS EVERY");
  // Several threads per block, and not a power of two: whose element is whose must not matter.
  virtual_cuda::reset({.devices = kMaxDevices, .linear = true, .block_threads = 3});
  std::printf("%d cases right\n", run_matrix(read_programs(argv[1]), std::atoi(argv[2])));
}
