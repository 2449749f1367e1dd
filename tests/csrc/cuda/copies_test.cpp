// Which copies are left to the copy engine.
#include "cases.h"
#include "cuda/peers.h"

namespace engines_test {
namespace {

constexpr int64_t kBytes = 64;

// One shard's bytes go from rank 0 to rank 1 for each shard, all in one launch of this rank.
Schedule schedule_of(int ranks, int executing_rank, int shards) {
  std::vector<Instruction> instructions;
  std::vector<int> launch;
  for (int shard = 0; shard < shards; ++shard) {
    launch.push_back(shard);
    instructions.push_back({executing_rank, shard, {0}, {1}, false});
  }
  return Schedule(ranks, ranks, shards, std::move(instructions), std::vector<std::vector<int>>(shards), {launch});
}

void expect_copies(const std::string& where, const Schedule& schedule, const Setting& setting, int wanted) {
  const Machine machine(schedule.ranks, setting);
  prove_peers(machine.placement.device_of_rank, machine.placement.current);
  std::vector<DeviceMemory> memory;
  Table table{DType::u8, Op::sum, 1, {}, {}};
  for (int shard = 0; shard < schedule.shards; ++shard) {
    table.rows.push_back({shard, kBytes, table.pointers.size()});
    for (int device : machine.placement.device_of_rank)
      table.pointers.push_back(static_cast<std::byte*>(memory.emplace_back(allocate_device(device, kBytes)).get()));
  }
  for (const char* how : {"enqueued", "recorded"}) {
    virtual_cuda::take_traffic();
    run_events(schedule, {table}, machine.placement);
    synchronize(setting.devices);
    const virtual_cuda::Traffic traffic = virtual_cuda::take_traffic();
    if (traffic.copies != wanted || traffic.kernels != 1 - wanted)
      fail(where + ", " + how + ": " + std::to_string(traffic.copies) + " copies and " +
           std::to_string(traffic.kernels) + " kernels");
  }
  expect_clean(where);
  ++cases;
}

}  // namespace

void copies_by_the_copy_engine() {
  const Setting two{.devices = 2, .slices = 1, .copy_engine_bytes = kBytes};
  const auto with = [&](const auto& change) {
    Setting setting = two;
    change(setting);
    return setting;
  };
  expect_copies("from its device", schedule_of(2, 0, 1), two, 1);
  expect_copies("to its device", schedule_of(2, 1, 1), two, 1);
  expect_copies("a small one", schedule_of(2, 0, 1), with([](Setting& x) { x.copy_engine_bytes = kBytes + 1; }), 0);
  expect_copies("two at once", schedule_of(2, 0, 2), two, 0);
  expect_copies("on one device", schedule_of(2, 0, 1), with([](Setting& x) {
    x.devices = 1;
    x.lane_per_rank = true;
  }),
                0);
  expect_copies("between two others", schedule_of(3, 2, 1), with([](Setting& x) { x.devices = 3; }), 0);
}

}  // namespace engines_test
